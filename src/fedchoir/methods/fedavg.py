"""FedAvg. McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017."""

from __future__ import annotations

from torch import Tensor

from fedchoir.core.actions import Exchange, Round, Script, Step
from fedchoir.methods.base import Method
from fedchoir.payload import Payload


class FedAvg(Method):
    """Clients start a round from the global model, practise, and the server averages weights and buffers."""

    name = "fedavg"
    title = "weights averaged every round"
    paper = "McMahan et al., AISTATS 2017"
    supports_dp = True
    heterogeneous = False
    begins_with_global = True
    profiles = {
        # FCCL+'s Table 15 and FBCL's Table 4 have other numbers at home than away, so one model was not tested there
        **{f"paper:{name}": {"eval_model": "own"} for name in ("digits", "office31", "office-caltech")},
        "official:digits": {"local_batch": 64},
        "official:office-caltech": {"local_lr": 0.01},
        "official:office-home": {"local_lr": 0.01},
        # FedCT's paper, which compares them under label skew
        **{f"paper:{name}": {"local_batch": 64} for name in ("cifar10", "cifar100", "tiny-imagenet", "vireofood172")},
    }

    def round(self, r: Round) -> Script:
        if self.server:
            yield Step(self.download, received=Payload(self.server))
        yield Step(self.local_update)
        self.server = dict((yield Exchange(self.upload, aggregator=self.weighting, dims=self.dims)))

    def global_weights(self) -> dict[str, Tensor] | None:
        return Payload(self.server).under("weights") or None if self.params.eval_model == "global" else None
