"""APFL. Deng, Kamani and Mahdavi, Adaptive Personalized Federated Learning, 2020."""

from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedchoir.methods.api import Batch, Client, Field, Settings
from fedchoir.methods.personal_model import PersonalModel
from fedchoir.models import Model


class APFLParams(Settings):
    alpha: float = Field(0.5, ge=0, le=1, description="α: share of the local model in the mixture, at the start")
    adaptive: bool = Field(True, description="learn α at every client; false: it stays as it is")


class MixtureWeight(nn.Module):
    """One learned number."""

    def __init__(self, alpha: float, learned: bool) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.tensor(alpha), requires_grad=learned)


class APFL(PersonalModel):
    """Every client evaluates a mixture of a local model v and its copy w of the global one: v̄ = α v + (1 − α) w.

    Local steps, on the same batches:

        w ← w − η ∇f(w),   v ← v − η ∇_v f(v̄),   α ← α − η ⟨∇f(v̄), v − w⟩,  clipped to [0, 1]

    The server averages w. The mixture's BatchNorm statistics are those of its own forward passes. α takes a step with
    every batch, by the optimizer of the weights. The released code mixes the two models' outputs instead of their
    weights, and takes one step of α a round, with an additional gradient of 0.02·α.
    """

    name = "apfl"
    title = "a learned mixture of a local and the averaged model"
    paper = "Deng et al., 2020"
    Params = APFLParams
    params: APFLParams

    def extra_modules(self, model: Model) -> dict[str, nn.Module]:
        """v and α beside w; ``client.model`` is v̄, which is derived from them."""
        mixture = MixtureWeight(self.params.alpha, self.params.adaptive)
        return {**super().extra_modules(model), "local_model": deepcopy(model), "mixture": mixture}

    def pretrain(self, client: Client) -> None:
        epochs = self.params.pretrain_epochs
        client.train(self.supervised_loss, epochs=epochs, phase="pretrain", after_step=self.clip)
        self.update_mixture(client)

    def local_update(self, client: Client) -> None:
        client.train(self.local_loss, after_step=self.clip)
        self.update_mixture(client)
        client.log_value("alpha", self.alpha(client).detach())

    def supervised_loss(self, client: Client, batch: Batch) -> Tensor:
        """f(w) + f(v̄). The mixture's gradient changes v and α, not w."""
        with client.autocast():
            z = functional_call(client.modules["local_model"], self.mixed(client), (batch.inputs,)).float()
        return self.global_loss(client, batch) + client.cross_entropy(z, batch.labels)

    def mixed(self, client: Client) -> dict[str, Tensor]:
        """The weights v̄, as a function of v and α."""
        alpha = self.alpha(client)
        v, w = (client.modules[name].named_parameters() for name in ("local_model", "global_model"))
        return {name: torch.lerp(b.detach(), a, alpha) for (name, a), (_, b) in zip(v, w, strict=True)}

    def update_mixture(self, client: Client) -> None:
        """v̄ into ``client.model``, with the statistics of its forward passes, which v has stored."""
        client.model.load_state_dict({**client.modules["local_model"].state_dict(), **self.mixed(client)})

    @torch.no_grad()
    def clip(self, client: Client) -> None:
        self.alpha(client).clamp_(0, 1)

    def alpha(self, client: Client) -> nn.Parameter:
        return client.modules["mixture"].get_parameter("alpha")
