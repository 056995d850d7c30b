"""Models for samples of which only the shape is known: they take all values in one vector."""

import math

from torch import nn

from fedchoir.models.base import Architecture, Model, Spec


def _logistic(spec: Spec) -> Model:
    """Multinomial logistic regression: the features are the values."""
    values = math.prod(spec.inputs.shape)
    head = nn.Linear(values, spec.num_classes)
    return spec.model(nn.Flatten(1), nn.Identity(), head, map_dim=0, feature_dim=values)


def _mlp(spec: Spec) -> Model:
    """Two hidden layers of W units."""
    w, values = spec.base_width, math.prod(spec.inputs.shape)
    trunk = nn.Sequential(nn.Flatten(1), nn.Linear(values, w), nn.ReLU(), nn.Linear(w, w), nn.ReLU())
    return spec.model(trunk, nn.Identity(), nn.Linear(w, spec.num_classes), map_dim=0, feature_dim=w)


ARCHITECTURES = {
    "mlp": Architecture("two hidden layers on all values; @WIDTH = hidden units (200)", _mlp, 200, "tensor"),
    "logistic": Architecture("logistic regression on all values", _logistic, None, "tensor"),
}
