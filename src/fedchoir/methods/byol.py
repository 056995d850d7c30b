"""BYOL alone. Grill et al., Bootstrap Your Own Latent, NeurIPS 2020, on every client's own unlabeled images."""

from __future__ import annotations

from fedchoir.core.actions import Round, Script, Step
from fedchoir.methods.self_supervised import SelfSupervised


class BYOL(SelfSupervised):
    """Clients learn from two views of their own images and hear nothing of each other."""

    name = "byol"
    title = "self-supervised, every client alone (BYOL, SimSiam or SimCLR)"
    paper = "Grill et al., NeurIPS 2020"

    def round(self, r: Round) -> Script:
        yield from self.hear_correlations(r)
        yield Step(self.local_update)
        yield from self.share_correlations()
