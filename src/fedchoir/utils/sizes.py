"""Numbers of bytes as text: ``2GB``, ``500 MB``, ``1.5GiB``."""

import re

UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")


def parse_size(text: str) -> int:
    """The bytes of a text such as ``2GB``.

    >>> parse_size("2GB"), parse_size("1.5 KiB"), parse_size("0")
    (2000000000, 1536, 0)
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None or match[2].upper() not in UNITS:
        raise ValueError("a size such as 2GB, 500MB or 0")
    return int(float(match[1]) * UNITS[match[2].upper()])


def readable_bytes(number: float) -> str:
    """Format a number of bytes with a binary unit.

    >>> readable_bytes(0), readable_bytes(1536), readable_bytes(5_000_000)
    ('0 B', '1.5 KiB', '4.8 MiB')
    """
    if number < 1024:
        return f"{number:.0f} B"
    unit = 2 if number >= 1024**3 else 1 if number >= 1024**2 else 0
    return f"{number / 1024 ** (unit + 1):.1f} {('KiB', 'MiB', 'GiB')[unit]}"
