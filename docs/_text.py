"""Values and plain text in the Markdown of generated pages."""

from __future__ import annotations

import re
from typing import Any


def shown(value: Any) -> str:
    """Return a value as code; nothing for None, which the description explains."""
    return "" if value is None else code(value)


def code(value: Any) -> str:
    value = getattr(value, "value", value)
    plain = ", ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
    return f"`{plain}`".replace("|", "\\|")  # a bar would end a table's cell


def text(value: str) -> str:
    """Plain text in Markdown: nothing in it becomes markup but `code`."""
    pieces = re.split(r"(`+[^`]*`+)", value)
    return "".join(
        p.replace("``", "`") if p.startswith("`") else re.sub(r"([*_<>\[\]{}#|\\])", r"\\\1", p) for p in pieces
    )


def cell(value: str) -> str:
    return text(" ".join(value.split()))
