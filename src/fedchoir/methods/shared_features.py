"""Methods that compare features of different architectures: all models get features of one width."""

from fedchoir.core.federation_spec import FederationSpec
from fedchoir.methods.api import Field, Method, Settings
from fedchoir.models import Model
from fedchoir.models.projection import ProjectedModel, Projection
from fedchoir.utils.errors import UsageError


class SharedFeatureParams(Settings):
    feature_dim: int = Field(
        128, ge=0, description="width of the features of all models; 0: their own, which must then be equal"
    )
    projection: Projection = Field(
        "linear",
        description="how a model's own features become feature_dim: a learned layer, or averages of neighbours",
    )


class SharedFeatures(Method):
    """Every model ends in a projection to ``feature_dim`` features and a linear head on them."""

    Params = SharedFeatureParams
    params: SharedFeatureParams

    def __init__(self, params: SharedFeatureParams, spec: FederationSpec) -> None:
        super().__init__(params, spec)
        if not params.feature_dim and not spec.homogeneous:
            raise UsageError(
                f"feature_dim = 0 is not possible with {self.name} and different architectures: their features have "
                "different widths; set it to a width such as 128"
            )

    def build_model(self, name: str) -> Model:
        model = super().build_model(name)
        width = self.params.feature_dim
        return ProjectedModel(model, width, self.params.projection) if width else model

    @property
    def dims(self) -> dict[str, int]:
        return {**super().dims, "d": self.feature_dim}

    @property
    def feature_dim(self) -> int:
        """The width that all models share."""
        return self.params.feature_dim or self.architecture.feature_dim
