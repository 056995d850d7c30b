"""Models by name, with one interface: feature map, features, logits."""

from fedchoir.models.base import Model, laid_out
from fedchoir.models.registry import build, check_name, describe, names

__all__ = ["Model", "build", "check_name", "describe", "laid_out", "names"]
