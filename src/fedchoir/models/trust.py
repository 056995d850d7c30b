"""Which models may be built from code and files, where names of models arrive in messages.

A simulation builds what its user names. In a federation, names arrive from the server or from sites: there only the
models that the operator of this process named may execute code or read files. Messages name them by their public names
(`ModelSpec.public_name`).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from fedchoir.models.spec import ModelSpec
from fedchoir.utils.errors import UsageError

_own: ContextVar[tuple[str, ...] | None] = ContextVar("own", default=None)


@contextmanager
def only_own_models(*names: str) -> Iterator[None]:
    """Inside the block, only these models may be code or files."""
    token = _own.set(names)
    try:
        yield
    finally:
        _own.reset(token)


def trusted(name: str) -> ModelSpec:
    """The model that a name stands for here; a `UsageError` if it must not be built here."""
    spec, own = ModelSpec.parse(name), _own.get()
    if spec.kind == "remote":
        for mine in map(ModelSpec.parse, own or ()):
            if mine.public_name == name:
                return ModelSpec.parse(mine.architecture)
        raise UsageError(f"model '{name}' is code of another site; it can be built only there")
    if own is not None and name not in own and not harmless(spec):
        raise UsageError(f"model '{name}' arrived in a message; only names of the zoo and of timm may")
    return spec


def harmless(spec: ModelSpec) -> bool:
    """Whether building a model executes no code of others and reads no file.

    >>> [harmless(ModelSpec.parse(name)) for name in ("resnet10@4", "timm:resnet18", "a.py:f", "mlp[weights=a.pt]")]
    [True, True, False, False]
    """
    return spec.kind in ("zoo", "timm") and not spec.weights and not spec.pretrained
