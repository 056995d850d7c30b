"""New images for a trained model: a folder, one file, or an `.npz` array."""

from pathlib import Path
from typing import Any

from torch import Tensor

from fedchoir.data.image.files import images_below, read_public_npz
from fedchoir.data.image.image_set import Normalise
from fedchoir.data.image.reader import image_loader
from fedchoir.data.options import DataOptions
from fedchoir.data.preprocessing import Preprocessing, numbered
from fedchoir.utils.errors import UsageError


def load(content: dict[str, Any], options: DataOptions) -> Preprocessing:
    loader = image_loader(options, None)
    constants = content["transform"]

    def read(path: Path) -> tuple[list[str], Tensor]:
        if path.suffix == ".npz" and path.is_file():
            images = read_public_npz(path, loader.decoder.resize)
            return numbered(images), images
        folder, files = (path, images_below(path)) if path.is_dir() else (path.parent, [path])
        if not files:
            raise UsageError(f"{path}: the folder holds no images")
        inputs, _ = loader.load(files, folder, "predict")
        return [str(file.relative_to(folder)) for file in files], inputs[:]

    return Preprocessing(read, Normalise(tuple(constants["mean"]), tuple(constants["std"])))
