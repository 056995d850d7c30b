"""Model-contrastive loss: MOON."""

import torch.nn.functional as F
from torch import Tensor


def moon(h: Tensor, h_global: Tensor, h_previous: Tensor, temperature: float = 0.5) -> Tensor:
    """MOON: features nearer to the global model's than to the client's own of the round before.

    MOON (Li et al., CVPR 2021), its model-contrastive term, averaged over the batch:

        L = −log( e^{cos(h, h_g)/τ} / (e^{cos(h, h_g)/τ} + e^{cos(h, h_prev)/τ}) )

    Args:
        h: the current model's features, B×d.
        h_global: the global model's features of the same images, B×d; no gradient flows into it.
        h_previous: the previous local model's features, B×d; no gradient flows into it.
        temperature: τ.

    >>> import torch
    >>> h = torch.tensor([[1.0, 0.0]])
    >>> round(moon(h, h, h).item(), 4)  # log 2: neither nearer nor farther
    0.6931
    >>> round(moon(h, h, -h).item(), 3)  # log(1 + e⁻⁴)
    0.018
    """
    towards = F.cosine_similarity(h, h_global.detach(), dim=1)
    away = F.cosine_similarity(h, h_previous.detach(), dim=1)
    # −log(e^a / (e^a + e^b)) = log(1 + e^(b − a))
    return F.softplus((away - towards) / temperature).mean()
