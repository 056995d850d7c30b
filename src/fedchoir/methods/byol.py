"""BYOL without an exchange. Grill et al., Bootstrap Your Own Latent, NeurIPS 2020."""

from fedchoir.core.actions import Round, Script, Step
from fedchoir.methods.self_supervised import SelfSupervised


class BYOL(SelfSupervised):
    """Every client trains alone on two views of its own unlabeled samples."""

    name = "byol"
    title = "self-supervised, every client alone (BYOL, SimSiam or SimCLR)"
    paper = "Grill et al., NeurIPS 2020"

    def round(self, r: Round) -> Script:
        yield from self.receive_correlations(r)
        yield Step(self.local_update)
        yield from self.share_correlations()
