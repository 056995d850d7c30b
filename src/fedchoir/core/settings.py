"""The options that every method understands. A method's own ``Params`` adds its own to these."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, field_validator


class Settings(BaseModel):
    """Training, data and federation options shared by all methods; the defaults are the profile ``fixed``."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    # local phase: private data
    local_epochs: NonNegativeInt | tuple[NonNegativeInt, ...] = Field(
        20, description="epochs over the private data in each round; several numbers: one per client, in turn"
    )
    local_batch: int = Field(128, ge=2, description="images in a private batch")
    local_lr: float = Field(1e-3, gt=0, description="learning rate of the local phase")
    local_weight_decay: float = Field(0.0, ge=0, description="weight decay of the local phase")
    optimizer: Literal["adam", "sgd"] = Field("adam", description="optimiser of the local phase")
    momentum: float = Field(0.0, ge=0, lt=1, description="momentum, for sgd")
    private_augment: Literal["none", "weak", "strong", "fccl", "affine", "recolor", "affine-recolor"] = Field(
        "none", description="augmentation of private images"
    )
    lr_schedule: Literal["linear", "constant"] = Field(
        "linear", description="linear: lr·(1 − 0.9·t/E) in round t of E, as in the released code"
    )
    pretrain_epochs: int = Field(0, ge=0, description="epochs on private data alone before the first round")

    # public phase: unlabeled public data
    public_batch: int = Field(256, ge=2, description="images in a public batch")
    public_lr: float = Field(1e-3, gt=0, description="learning rate of the public phase")
    public_optimizer: Literal["adam", "sgd"] = Field("adam", description="optimiser of the public phase")
    public_weight_decay: float = Field(0.0, ge=0, description="weight decay of the public phase")
    public_epochs: int = Field(1, ge=1, description="passes over the public set in each round")
    public_size: int = Field(5000, ge=2, description="number of public images")
    public_augment: Literal["none", "weak", "strong", "fccl", "affine", "recolor", "affine-recolor"] = Field(
        "weak", description="augmentation of public images; every client sees the same view"
    )
    public_optimizer_lifetime: Literal["round", "batch"] = Field(
        "round", description="one Adam per round, or one rebuilt for every batch as in the released code"
    )
    public_drop_last: bool = Field(False, description="leave out the last public batch if it is not full")
    sync: Literal["batch", "epoch"] = Field(
        "batch", description="exchange after every public batch, or once per pass over the public set"
    )
    passes: Literal["one", "two"] = Field(
        "one", description="features and logits of a public batch from one forward pass, or from two"
    )
    normalisation: Literal["correct", "swapped"] = Field(
        "correct", description="constants of CIFAR-100 and Tiny-ImageNet; the released code swapped them"
    )

    # federation
    fraction: float = Field(1.0, gt=0, le=1, description="share of the clients that take part in a round")
    average: Literal["auto", "before-local", "after-local", "never"] = Field(
        "auto",
        description="parameter averaging when all models are alike; auto is before-local, without labels never",
    )
    weighting: Literal["size", "uniform"] = Field(
        "size", description="weights of parameter averaging: by private images, or all alike"
    )
    eval_model: Literal["global", "own"] = Field(
        "global",
        description="FedAvg, FedBYOL and their kin: test the global model, or every client's own after its local phase",
    )
    evaluate_every: int = Field(1, ge=1, description="evaluate every n-th round; the last three always")

    # differential privacy of the local phase
    dp_noise: float = Field(
        0.0, ge=0, description="σ: noise over clip in every private step; 0: no differential privacy"
    )
    dp_clip: float = Field(1.0, gt=0, description="largest norm of one image's gradient")
    dp_delta: float = Field(1e-5, gt=0, lt=1, description="δ at which ε is reported")
    dp_epsilon: float | None = Field(None, gt=0, description="stop before a client's ε would exceed this")

    # hostile clients
    robust: Literal["mean", "median", "trimmed_mean", "krum"] = Field(
        "mean",
        description="how answers are combined where a method takes a mean: as it says, or so that few cannot bend it",
    )
    robust_share: float = Field(
        0.2, gt=0, lt=0.5, description="share of the clients, at least one, that a robust rule reckons with as hostile"
    )
    attack: Literal["none", "sign_flip", "noise", "label_flip", "nan"] = Field(
        "none", description="rehearsal: what hostile clients do with their answers or labels"
    )
    attackers: int = Field(0, ge=0, description="rehearsal: how many clients are hostile, the last ones")

    # machine
    activation_budget_gb: float = Field(
        0.4,
        ge=0,
        description="on the CPU: GB kept for a backward pass; beyond it the widest blocks are computed twice, to the "
        "same numbers (0: no limit)",
    )

    # data
    clients: int | None = Field(None, ge=1, description="number of clients; default: one per domain, or 10")
    private: tuple[int | float, ...] | None = Field(
        None, description="private images per domain: counts, or shares below 1; default: the papers'"
    )
    image_size: int = Field(32, ge=8, le=512, description="images are resized to this height and width")
    test_split: Literal["held-out", "validation", "whole-folder"] = Field(
        "held-out",
        description="validation: test on a fifth of the training images, held back, to choose options by; "
        "whole-folder: the released code's Office split, which tests on training images, and trains on the first part "
        "of a folder, so without its last classes",
    )
    partition: Literal["dirichlet", "shards", "classes", "iid", "file"] = Field(
        "dirichlet", description="how a label-skew scenario is split over the clients"
    )
    partition_file: Path | None = Field(None, description="JSON with the image indices of every client")
    beta: float = Field(0.5, gt=0, description="concentration of the Dirichlet split: small is skewed")
    shards_per_client: int = Field(2, ge=1, description="for partition=shards")
    classes_per_client: int = Field(2, ge=1, description="for partition=classes")
    label_noise: float = Field(0.0, ge=0, lt=1, description="share of private labels that are wrong")
    noise_type: Literal["symmetric", "pair"] = Field("symmetric", description="how labels are flipped")
    centralized: bool = Field(
        False, description="every client has the private images of all: with solo, what one place would reach"
    )

    @field_validator("private", "local_epochs", mode="before")
    @classmethod
    def _split_commas(cls, value: Any) -> Any:
        if isinstance(value, str) and "," in value:
            return tuple(float(v) if "." in v else int(v) for v in value.replace(" ", "").strip(",").split(","))
        return value

    @field_validator("private", mode="before")
    @classmethod
    def _one_for_all(cls, value: Any) -> Any:
        return (value,) if isinstance(value, int | float) and not isinstance(value, bool) else value

    def epochs_of(self, client: int) -> int:
        """Local epochs of one client.

        >>> Settings(local_epochs="40,35,3,4").epochs_of(2), Settings(local_epochs=20).epochs_of(2)
        (3, 20)
        """
        epochs = self.local_epochs
        return epochs if isinstance(epochs, int) else epochs[client % len(epochs)]

    def lr(self, base: float, round_index: int, rounds: int) -> float:
        """The learning rate of a round.

        >>> Settings().lr(0.001, 20, 40)
        0.00055
        """
        return base if self.lr_schedule == "constant" else base * (1 - 0.9 * round_index / rounds)
