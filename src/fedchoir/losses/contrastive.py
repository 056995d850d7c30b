"""Contrastive losses: between models (MOON) and between two views of each sample (NT-Xent)."""

import torch
import torch.nn.functional as F
from torch import Tensor

from fedchoir.losses._common import cosines, off_diagonal


def moon(h: Tensor, h_global: Tensor, h_previous: Tensor, temperature: float = 0.5) -> Tensor:
    """MOON: draw features to the global model's, repel them from the client's previous model's.

    MOON (Li et al., CVPR 2021), its model-contrastive term, averaged over the batch:

        L = −log( e^{cos(h, h_g)/τ} / (e^{cos(h, h_g)/τ} + e^{cos(h, h_prev)/τ}) )

    Args:
        h: the current model's features, B×d.
        h_global: the global model's features of the same samples, B×d; detached.
        h_previous: the previous local model's features, B×d; detached.
        temperature: τ.

    >>> h = torch.tensor([[1.0, 0.0]])
    >>> round(moon(h, h, h).item(), 4)  # log 2
    0.6931
    >>> round(moon(h, h, -h).item(), 3)  # log(1 + e⁻⁴)
    0.018
    """
    towards = F.cosine_similarity(h, h_global.detach(), dim=1)
    previous = F.cosine_similarity(h, h_previous.detach(), dim=1)
    # −log(e^a / (e^a + e^b)) = log(1 + e^(b − a))
    return F.softplus((previous - towards) / temperature).mean()


def nt_xent(y1: Tensor, y2: Tensor, temperature: float = 0.5) -> Tensor:
    """SimCLR: identify a sample's second view among the 2B − 1 other views of the batch.

    NT-Xent (Chen et al., ICML 2020, eq. 1; FedFoA eq. 3), averaged over all 2B views. lightly's version indexes with
    a mask and so synchronises with the device.

    Args:
        y1: projections of the first views, B×d.
        y2: projections of the second views of the same samples, B×d.
        temperature: τ.

    >>> y = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    >>> round(nt_xent(y, y).item(), 4)  # log(1 + 2·e⁻⁴)
    0.036
    """
    batch = len(y1)
    views = torch.cat([y1, y2])
    others = off_diagonal(cosines(views, views)) / temperature
    rows = torch.arange(batch, device=y1.device)
    # without the diagonal, the other view i + B of view i is one column earlier
    return F.cross_entropy(others, torch.cat([rows + batch - 1, rows]))
