"""The options that every method has. A method's own ``Params`` adds its own to these."""

import math
from typing import Any, Literal, Self

from pydantic import Field, NonNegativeInt, field_validator, model_validator

from fedchoir.core.robust import Attack, Rule
from fedchoir.data.options import DataOptions
from fedchoir.data.public import Normalisation
from fedchoir.data.samples import Augmentation
from fedchoir.utils.options import Options, split_numbers

Optimizer = Literal["adam", "sgd"]


class LocalOptions(Options):
    """Training on private data, and the memory for it."""

    local_epochs: NonNegativeInt | tuple[NonNegativeInt, ...] = Field(
        20, description="epochs over the private data in each round; several numbers: one per client, in turn"
    )
    local_batch: int = Field(128, ge=2, description="samples in a private batch")
    local_lr: float = Field(1e-3, gt=0, description="learning rate of the local phase")
    local_weight_decay: float = Field(0.0, ge=0, description="weight decay of the local phase")
    optimizer: Optimizer = Field("adam", description="optimizer of the local phase")
    momentum: float = Field(0.0, ge=0, lt=1, description="momentum, for sgd")
    class_weights: Literal["none", "balanced"] = Field(
        "none", description="cross-entropy weighted by class: balanced is inverse to the client's own class frequencies"
    )
    private_augment: Augmentation = Field("none", description="augmentation of private samples")
    lr_schedule: Literal["linear", "linear-delayed", "constant", "cosine"] = Field(
        "linear",
        description="linear: lr·(1 − 0.9·t/E) in round t = 0, 1, … of E; linear-delayed: one round later, as in "
        "FCCL+'s released code, which changes the rate after a round; cosine: towards 0",
    )
    pretrain_epochs: int = Field(0, ge=0, description="epochs on private data alone before the first round")
    pretrain_batch: int | None = Field(
        None, ge=2, description="samples in a batch of pretraining; default: local_batch"
    )
    pretrain_weight_decay: float | None = Field(
        None, ge=0, description="weight decay of pretraining; default: local_weight_decay"
    )
    activation_budget_gb: float = Field(
        0.4,
        ge=0,
        description="on the CPU: GB of activations kept for a backward pass; beyond it the widest blocks are computed "
        "twice, with the same numbers (0: no limit)",
    )

    @field_validator("local_epochs", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return split_numbers(value)

    def epochs_of(self, client: int) -> int:
        """Local epochs of one client.

        >>> Settings(local_epochs="40,35,3,4").epochs_of(2), Settings(local_epochs=20).epochs_of(2)
        (3, 20)
        """
        epochs = self.local_epochs
        return epochs if isinstance(epochs, int) else epochs[client % len(epochs)]

    def lr(self, base: float, round_index: int, rounds: int) -> float:
        """The learning rate of a round.

        >>> Settings().lr(0.001, 20, 40), round(Settings(lr_schedule="cosine").lr(0.001, 10, 40), 6)
        (0.00055, 0.000854)
        """
        if self.lr_schedule == "constant":
            return base
        if self.lr_schedule == "cosine":
            return base * (1 + math.cos(math.pi * round_index / rounds)) / 2
        passed = max(0, round_index - 1) if self.lr_schedule == "linear-delayed" else round_index
        return base * (1 - 0.9 * passed / rounds)

    def of_pretraining(self) -> Self:
        """The same settings with the batch and weight decay of pretraining as those of the local phase."""
        decay = self.pretrain_weight_decay
        changed = {
            "local_batch": self.pretrain_batch or self.local_batch,
            "local_weight_decay": self.local_weight_decay if decay is None else decay,
        }
        return self.model_copy(update=changed)


class PublicOptions(Options):
    """Training on unlabeled public data."""

    public_batch: int = Field(256, ge=2, description="samples in a public batch")
    public_lr: float = Field(1e-3, gt=0, description="learning rate of the public phase")
    public_optimizer: Optimizer = Field("adam", description="optimizer of the public phase")
    public_weight_decay: float = Field(0.0, ge=0, description="weight decay of the public phase")
    public_epochs: int = Field(1, ge=1, description="passes over the public set in each round")
    public_size: int = Field(5000, ge=2, description="number of public samples")
    public_augment: Augmentation = Field("weak", description="augmentation of public samples, equal for all clients")
    public_optimizer_lifetime: Literal["round", "batch"] = Field(
        "round", description="one optimizer per round, or a new one for every batch as in the released code"
    )
    public_drop_last: bool = Field(False, description="leave out the last public batch if it is not full")
    sync: Literal["batch", "epoch"] = Field(
        "batch", description="exchange after every public batch, or once per pass over the public set"
    )
    passes: Literal["one", "two"] = Field(
        "one", description="features and logits of a public batch from one forward pass, or from two"
    )
    normalisation: Normalisation = Field(
        "correct", description="constants of CIFAR-100 and Tiny-ImageNet; the released code swapped them"
    )


class FederationOptions(Options):
    """Participation, parameter averaging and evaluation."""

    fraction: float = Field(1.0, gt=0, le=1, description="share of the clients that take part in a round")
    average: Literal["auto", "before-local", "after-local", "never"] = Field(
        "auto",
        description="parameter averaging if all models are alike; auto: before-local, self-supervised methods never",
    )
    weighting: Literal["size", "uniform"] = Field(
        "size", description="weights of parameter averaging: number of private samples, or all equal"
    )
    eval_model: Literal["global", "own"] = Field(
        "global",
        description="methods with a global model: test it, or every client's own model after its local phase",
    )
    evaluate_every: int = Field(1, ge=1, description="evaluate every n-th round, and always in the last three")
    validation: float = Field(
        0.0, ge=0, le=0.9, description="share of each client's training samples held back to choose its best round"
    )
    early_stopping: int = Field(
        0, ge=0, description="end when no client improved on its validation share in n evaluated rounds; 0: never"
    )

    def averaging_rounds(self, rounds: int) -> int:
        """How often a run of so many rounds averages: once in each, unless a method counts its exchanges as rounds."""
        return rounds

    @model_validator(mode="after")
    def _stopping_needs_validation(self) -> Self:
        if self.early_stopping and not self.validation:
            raise ValueError(
                f"early_stopping = {self.early_stopping} is not possible without a validation share: set validation to "
                "a share such as 0.1"
            )
        return self


class PrivacyOptions(Options):
    """Differential privacy of the local phase."""

    dp_noise: float = Field(
        0.0, ge=0, description="σ: noise relative to the clipping norm in every private step; 0: no noise, no clipping"
    )
    dp_clip: float = Field(1.0, gt=0, description="largest norm of one sample's gradient")
    dp_delta: float = Field(1e-5, gt=0, lt=1, description="δ at which ε is reported")
    dp_epsilon: float | None = Field(None, gt=0, description="stop before a client's ε would exceed this")


class RobustnessOptions(Options):
    """Aggregation that tolerates hostile clients, and simulated attacks to test it."""

    robust: Rule = Field("mean", description="how payloads are aggregated where a method takes a mean")
    robust_share: float = Field(0.2, gt=0, lt=0.5, description="share of hostile clients that a robust rule tolerates")
    attack: Attack = Field("none", description="simulation: what hostile clients do to their payloads or labels")
    attackers: int = Field(0, ge=0, description="simulation: number of hostile clients, the last ones")


# pydantic lists the fields of the last base first
class Settings(DataOptions, RobustnessOptions, PrivacyOptions, FederationOptions, PublicOptions, LocalOptions):
    """The options that all methods share, by the flat names of ``--set``."""

    @model_validator(mode="after")
    def _one_batch_size_under_dp(self) -> Self:
        if self.dp_noise and self.pretrain_batch not in (None, self.local_batch):
            raise ValueError(
                f"pretrain_batch = {self.pretrain_batch} is not possible with dp_noise: ε is computed for one batch "
                f"size; it should be local_batch, {self.local_batch}"
            )
        return self
