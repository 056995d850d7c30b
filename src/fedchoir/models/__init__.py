"""Architectures by name, all behind one interface: feature map, features, classifier."""

from fedchoir.models.base import VisionModel
from fedchoir.models.registry import build, describe, names

__all__ = ["VisionModel", "build", "describe", "names"]
