"""``policy.toml``: read it, merge it with the options of the command line, and write it."""

from pathlib import Path
from typing import Any

import tomli_w

from fedchoir.deploy.policy import Policy
from fedchoir.utils.errors import UsageError
from fedchoir.utils.io import read_toml

EXAMPLES = {
    "federation": '"federation.toml"', "federation_sha256": '"…"', "methods": '["fccl+"]', "public": '"photos"',
    "settings": '{ local_epochs = { min = 1, max = 20 }, sync = ["epoch"], dp_clip = 1.0 }', "public_sha256": '"…"',
    "max_parameters": "30_000_000", "hours": '"22:00-06:00"', "max_epsilon": "8.0", "peers": '"peers"',
}  # fmt: skip
"""Values in the comments of a new file, for fields that have no default."""


def read_policy(path: Path | None, **given: Any) -> Policy:
    """The policy in a file, and what the command line gave; the command line wins."""
    values: dict[str, Any] = read_toml(path) if path is not None else {}
    folder = path.resolve().parent if path is not None else Path()
    try:
        policy = Policy(**values)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None
    resolved = {name: folder / getattr(policy, name) for name in ("federation", "peers") if values.get(name)}
    if policy.public is not None and (folder / policy.public).exists():
        resolved["public"] = str(folder / policy.public)
    if "federation" in given:
        values.pop("federation_sha256", None)  # of another file
    return Policy(**{**values, **resolved, **given})


def policy_text(**given: Any) -> str:
    """``policy.toml``: every field with its description. Fields that are not given are comments."""
    lines = ["# What this site allows: fedchoir node --policy FILE reads it. docs/deploy.md describes it.", ""]
    for name, field in Policy.model_fields.items():
        lines.append(f"# {field.description}")
        if given.get(name) is not None:
            lines.append(tomli_w.dumps({name: given[name]}))
        elif name in EXAMPLES:
            lines.append(f"# {name} = {EXAMPLES[name]}\n")
        else:
            lines.append(f"# {tomli_w.dumps({name: field.default})}")
    return "\n".join(lines)
