"""How a model is named: a source, and options in brackets.

``NAME[@WIDTH]`` is one of the zoo, ``timm:NAME`` any of timm's, ``FILE.py:FACTORY`` and ``package.module:FACTORY`` are
the user's own, ``object:…`` is a module that was given as a Python object. Options follow in brackets:
``my_net.py:build[weights=w.safetensors,train=head]``. In a TOML file a model may be a table with the same names.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from fedchoir.utils.errors import UsageError
from fedchoir.utils.options import Options

TIMM = "timm:"
OBJECT = "object:"
REMOTE = "custom:"
"""A model of another site's own code, as messages name it. It cannot be built anywhere else."""

Kind = Literal["zoo", "timm", "file", "package", "object", "remote"]
_PREFIXES: dict[str, Kind] = {TIMM: "timm", OBJECT: "object", REMOTE: "remote"}
_FORM = re.compile(r"\s*([^\[\]]*?)\s*(?:\[([^\[\]]*)\])?\s*")


class ModelSpec(Options):
    """A model: where it comes from, what it starts from, and how it is trained.

    >>> spec = ModelSpec.parse("timm:resnet18[pretrained,train=head]")
    >>> spec.source, spec.pretrained, spec.train, spec.architecture
    ('timm:resnet18', True, 'head', 'timm:resnet18')
    >>> str(spec)
    'timm:resnet18[pretrained,train=head]'
    """

    source: str = Field(description="a name (fedchoir list models), timm:NAME, FILE.py:FACTORY or module:FACTORY")
    pretrained: bool = Field(False, description="start from timm's trained weights (timm:NAME only)")
    weights: str | None = Field(None, min_length=1, description="file with the weights to start from")
    features: str | None = Field(None, min_length=1, description="layer whose output is the features")
    feature_map: str | None = Field(None, min_length=1, description="layer whose output is the last feature map")
    output: str | None = Field(None, min_length=1, description="entry of the model's output that is the logits")
    projection: int | None = Field(
        None, ge=2, le=4096, description="width of MOON's projection head before the classifier: features with a sign"
    )
    train: Literal["all", "head"] = Field("all", description="head: the layers before the classifier are frozen")
    trunk_lr: float = Field(
        1.0, gt=0, le=1000, description="factor on the learning rate of the layers before the classifier"
    )

    @field_validator("source", "weights", "features", "feature_map", "output")
    @classmethod
    def _plain(cls, value: str | None) -> str | None:
        if value is not None and re.search(r"[\[\],]", value):
            raise ValueError("without commas and brackets")
        return value

    @model_validator(mode="after")
    def _possible(self) -> ModelSpec:
        if self.pretrained and self.kind != "timm":
            raise ValueError(f"pretrained is for timm:NAME, not for {self.source}; give a file: [weights=FILE]")
        if self.pretrained and self.weights:
            raise ValueError("pretrained and weights exclude each other: a model starts from one of them")
        if self.kind in ("zoo", "timm") and (self.features or self.feature_map or self.output):
            raise ValueError("features, feature_map and output are for models of your own (FILE.py:FACTORY)")
        return self

    @classmethod
    def parse(cls, text: str) -> ModelSpec:
        """The model that a string names."""
        form = _FORM.fullmatch(text)
        if form is None:
            raise UsageError(f"model {text!r} is not possible: it should be SOURCE or SOURCE[option,option=value]")
        values: dict[str, Any] = {}
        for part in filter(None, map(str.strip, (form[2] or "").split(","))):
            key, equals, value = map(str.strip, part.partition("="))
            values[key] = value if equals else True
        try:
            return cls(source=form[1], **values)
        except UsageError as error:
            raise UsageError(f"model {text!r}: {error}") from None

    @classmethod
    def read(cls, value: Any) -> ModelSpec:
        """The model of a string or of a table in a TOML file."""
        return cls(**value) if isinstance(value, dict) else cls.parse(str(value))

    def __str__(self) -> str:
        return self._with_options(set(type(self).model_fields) - {"source"})

    @property
    def architecture(self) -> str:
        """The string without weights and training options: clients with the same one can average their weights."""
        return self._with_options({"features", "feature_map", "output", "projection"})

    @property
    def kind(self) -> Kind:
        for prefix, kind in _PREFIXES.items():
            if self.source.startswith(prefix):
                return kind
        place, colon, _ = self.source.rpartition(":")
        if colon:
            return "file" if place.endswith(".py") else "package"
        return "zoo"

    @property
    def public_name(self) -> str:
        """What other sites learn: the architecture, or of the site's own code only its name, without folders.

        >>> ModelSpec.parse("/srv/a/my_net.py:build[weights=w.pt]").public_name
        'custom:my_net.build'
        """
        if self.kind in ("zoo", "timm", "remote"):
            return self.architecture
        if self.kind == "object":
            return REMOTE + self.source.removeprefix(OBJECT)
        place, _, factory = self.source.rpartition(":")
        return f"{REMOTE}{Path(place).stem if self.kind == 'file' else place}.{factory}"

    def relative_to(self, folder: Path) -> ModelSpec:
        """The same model with its files looked for in ``folder`` where they are not in the working folder."""
        changes: dict[str, Any] = {}
        if self.kind == "file":
            place, _, factory = self.source.rpartition(":")
            changes["source"] = f"{_found(place, folder)}:{factory}"
        if self.weights:
            changes["weights"] = _found(self.weights, folder)
        return self.model_copy(update=changes)

    def absolute(self) -> ModelSpec:
        """The same model with the whole path of its code, so that it can be built in another working folder.

        A path that a name cannot contain stays as it is.
        """
        if self.kind != "file":
            return self
        place, _, factory = self.source.rpartition(":")
        whole = f"{Path(place).expanduser().absolute()}:{factory}"
        return self if re.search(r"[\[\],]", whole) else self.model_copy(update={"source": whole})

    def without_folders(self) -> ModelSpec:
        """The same model with the names of its files alone, for other readers.

        >>> str(ModelSpec.parse("/srv/a/my_net.py:build[weights=/srv/w.pt]").without_folders())
        'my_net.py:build[weights=w.pt]'
        """
        changes: dict[str, Any] = {}
        if self.kind == "file":
            place, _, factory = self.source.rpartition(":")
            changes["source"] = f"{Path(place).name}:{factory}"
        if self.weights:
            changes["weights"] = Path(self.weights).name
        return self.model_copy(update=changes)

    def _with_options(self, names: set[str]) -> str:
        options = []
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if name in names and value != field.default:
                text = f"{value:g}" if isinstance(value, float) else value
                options.append(name if value is True else f"{name}={text}")
        return f"{self.source}[{','.join(options)}]" if options else self.source


def _found(place: str, folder: Path) -> str:
    path = Path(place).expanduser()
    return str(folder / path) if not path.exists() and (folder / path).exists() else place


def split_models(text: str) -> tuple[str, ...]:
    """``"a, b[c,d]"`` as ``("a", "b[c,d]")``.

    >>> split_models("resnet10, timm:resnet18[pretrained,train=head]")
    ('resnet10', 'timm:resnet18[pretrained,train=head]')
    """
    return tuple(part.strip() for part in re.split(r",(?![^\[]*\])", text) if part.strip())
