"""What a site needs to use its model after a federation: files beside the client's state, for export and predict."""

from pathlib import Path

from fedchoir.data.samples import Samples
from fedchoir.experiments.trained import FILE, GLOBAL_FILE, write_models
from fedchoir.methods.base import Method
from fedchoir.payload import Payload, save_tensors
from fedchoir.utils.io import atomic_path


def keep_model(folder: Path, method: Method, index: int, model: str, samples: Samples, weights: Payload | None) -> None:
    """Describe the site's model, and keep the global model that the server sent for evaluation, if there is one."""
    if not (folder / FILE).exists():
        write_models(folder, method, "federation", {index: samples}, {index: model})
    if weights is not None:
        with atomic_path(folder / GLOBAL_FILE) as part:
            save_tensors(part, weights.under("weights"))
