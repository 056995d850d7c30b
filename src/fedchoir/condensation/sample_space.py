"""The space in which samples are condensed, and what of it travels.

Images: pixels in [0, 1], sent as uint8. Tables, series and tensors: what the sender's transform gives, in standard
units, sent as float32. Texts: token ids, sent as int32 (`condensation.text`). Every client's model takes them.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from fedchoir.data.image.augment import AFFINE_DEGREES, AFFINE_SHIFT, AFFINE_ZOOM, affine
from fedchoir.data.image.image_set import ImageSet
from fedchoir.data.samples import Samples, Transform
from fedchoir.data.series.series_set import SeriesSet
from fedchoir.data.text.text_set import TextSet
from fedchoir.data.torch_datasets.tensor_set import TensorSet
from fedchoir.utils.errors import UsageError
from fedchoir.utils.input_spec import InputSpec

LARGEST = 20.0  # magnitude of a value in standard units
BRIGHTNESS = 0.1
CONTRAST = 0.25

Change = Callable[[Tensor], Tensor]


def check_modality(inputs: InputSpec, formation: int) -> None:
    """Raise `UsageError` where samples cannot be condensed."""
    if formation > 1 and inputs.modality != "image":
        raise UsageError(f"formation = {formation} is for images, not for {inputs.modality} samples; set it to 1")
    if formation > 1 and any(side % formation for side in inputs.shape[1:]):
        raise UsageError(f"formation = {formation} does not divide the image size {inputs.shape[1:]}; choose another")


def plain(samples: Samples, index: Tensor, transform: Transform | None = None) -> Tensor:
    """Stored samples in the space of condensation, without augmentation; ``transform`` is the client's own, for samples
    that have none of their own."""
    chosen = samples.inputs[index]
    if samples.modality == "image":
        return chosen.to(torch.float32) / 255
    if samples.modality == "text":
        return chosen
    own = samples.transform or transform
    assert own is not None
    return own(chosen).clamp(-LARGEST, LARGEST)


def limits(modality: str) -> tuple[float, float]:
    return (0.0, 1.0) if modality == "image" else (-LARGEST, LARGEST)


def middle(modality: str) -> float:
    return 0.5 if modality == "image" else 0.0


def for_network(samples: Tensor, modality: str) -> Tensor:
    """Values around 0 with a spread of about 1."""
    return (samples - 0.5) * 4 if modality == "image" else samples


def sent_dtype(modality: str) -> str:
    return {"image": "uint8", "text": "int32"}.get(modality, "float32")


def pack(samples: Tensor, modality: str) -> Tensor:
    """What travels."""
    if modality == "text":
        return samples.to(torch.int32)
    return (samples * 255).round().to(torch.uint8) if modality == "image" else samples.float()


def unpack(packed: Tensor) -> Tensor:
    """The inverse of `pack`."""
    if packed.dtype == torch.int32:
        return packed.long()
    return packed.float() / 255 if packed.dtype == torch.uint8 else packed


def as_samples(packed: Tensor, labels: Tensor, modality: str) -> Samples:
    """Received samples as a data set, to be augmented like private ones."""
    if modality == "image":
        return ImageSet(packed.contiguous(), labels)
    if modality == "text":
        return TextSet(unpack(packed), labels)
    return SeriesSet(packed, labels, scaling="none") if modality == "series" else TensorSet(packed, labels)


def decode(packed: Tensor, formation: int) -> Tensor:
    """Images that hold ``formation``² smaller ones → those, enlarged to full size: M×3×H×W → (M·f²)×3×H×W.

    Works on uint8 and on float in [0, 1], and is differentiable on the latter. The images of one come in sequence.

    >>> decode(torch.zeros(2, 3, 8, 8), 2).shape
    torch.Size([8, 3, 8, 8])
    """
    if formation == 1:
        return packed
    if packed.dtype == torch.uint8:
        return pack(decode(unpack(packed), formation), "image")
    count, channels, height, width = packed.shape
    small = (height // formation, width // formation)
    tiles = packed.reshape(count, channels, formation, small[0], formation, small[1]).permute(0, 2, 4, 1, 3, 5)
    tiles = tiles.reshape(count * formation**2, channels, *small)
    return F.interpolate(tiles, size=(height, width), mode="bilinear", align_corners=False).clamp(0, 1)


def siamese(modality: str, generator: torch.Generator) -> Change:
    """One random change, the same for every sample that it is applied to, and differentiable.

    Images: rotation, zoom, shift, contrast and brightness. Series: a factor. Others: none.
    """
    draws = (torch.rand(6, generator=generator) * 2 - 1).tolist()
    if modality == "series":
        return lambda samples: samples * (1 + 0.1 * draws[0])
    if modality != "image":
        return lambda samples: samples

    def change(pixels: Tensor) -> Tensor:
        ones = torch.ones(len(pixels))
        height, width = pixels.shape[-2:]
        move = AFFINE_SHIFT * torch.stack([draws[2] * height * ones, draws[3] * width * ones])
        moved = affine(pixels, AFFINE_DEGREES * draws[0] * ones, AFFINE_ZOOM ** (draws[1] * ones), move)
        mean = moved.mean(dim=(1, 2, 3), keepdim=True)
        return (moved - mean) * (1 + CONTRAST * draws[4]) + mean + BRIGHTNESS * draws[5]

    return change
