"""Models by name, with one interface: feature map, features, logits."""

from fedchoir.models.base import VisionModel
from fedchoir.models.registry import build, describe, names

__all__ = ["VisionModel", "build", "describe", "names"]
