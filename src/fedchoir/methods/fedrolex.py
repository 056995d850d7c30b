"""FedRolex. Alam et al., FedRolex: Model-Heterogeneous Federated Learning with Rolling Sub-Model Extraction,
NeurIPS 2022."""

from functools import cached_property
from math import gcd
from typing import Literal

from fedchoir.methods.api import Field
from fedchoir.methods.heterofl import HeteroFL, HeteroFLParams
from fedchoir.models.slices import common_divisor
from fedchoir.utils.errors import UsageError


class FedRolexParams(HeteroFLParams):
    advance: Literal["channel", "share"] = Field(
        "channel",
        description="how far the window moves in a round: one channel in every layer, or the same share of each layer "
        "(also for models that flatten a feature map)",
    )


class FedRolex(HeteroFL):
    """HeteroFL with a window of channels that moves every round, so that clients train all of the network evenly.

    In round t a client with d of the D channels of a layer has the channels {t, t + 1, …, t + d − 1} mod D. Means by
    coverage, BatchNorm and the masked loss are those of HeteroFL, on which the released code is built. Clients evaluate
    the slices of the last window. The global network is the widest client's; in the paper it may be wider than any.

    With ``advance = share`` the window of a layer starts at t·D/G, with the greatest common divisor G of all widths. It
    passes through every layer in G rounds, and the inputs of a layer after a flattened map move with their channels.
    """

    name = "fedrolex"
    title = "HeteroFL with a window of channels that moves every round"
    paper = "Alam et al., NeurIPS 2022"
    Params = FedRolexParams
    params: FedRolexParams

    def shift(self, round_index: int, width: int) -> int:
        return round_index if self.params.advance == "channel" else round_index * width // self.divisor

    @cached_property
    def divisor(self) -> int:
        """G: how many rounds the window takes to pass through a layer."""
        wide = self.widths[self.widest].state_dict()
        return gcd(*(common_divisor(wide, model.state_dict()) for model in self.widths.values())) or 1

    def check_models(self) -> None:
        try:
            super().check_models()
        except UsageError as error:
            hint = "; advance = 'share' also suits models that flatten a feature map"
            raise UsageError(f"{error}{hint if self.params.advance == 'channel' else ''}") from None
