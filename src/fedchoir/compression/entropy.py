"""zstd frames. A frame from another site is unpacked only if its header states exactly the expected size."""

from __future__ import annotations

from typing import Any

from fedchoir.payload import PayloadError
from fedchoir.utils.errors import UsageError

LEVEL = 9  # numbers after rounding gain little from higher levels
MAX_WINDOW = 2**27


def _library() -> Any:
    try:
        import zstandard
    except ModuleNotFoundError:
        raise UsageError("zstd needs the package zstandard: pip install 'fedchoir[compression]'") from None
    return zstandard


def check_available() -> None:
    """Raise `UsageError` where the library is missing."""
    _library()


def pack(content: bytes) -> bytes:
    frame: bytes = _library().ZstdCompressor(level=LEVEL, write_content_size=True).compress(content)
    return frame


def unpack(frame: bytes, size: int) -> bytes:
    """The ``size`` bytes of a frame. The size in its header is compared first: nothing larger is ever allocated."""
    zstandard = _library()
    try:
        stated = zstandard.get_frame_parameters(frame).content_size
        if stated != size:
            known = "an unknown number of" if stated >= zstandard.CONTENTSIZE_ERROR else str(stated)
            raise PayloadError(f"a zstd frame of {known} bytes, and the declaration needs {size}")
        content: bytes = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW).decompress(
            frame, max_output_size=size, allow_extra_data=False
        )
    except zstandard.ZstdError as error:
        raise PayloadError(f"not a zstd frame: {str(error)[:100]}") from None
    if len(content) != size:
        raise PayloadError(f"a zstd frame of {len(content)} bytes, and the declaration needs {size}")
    return content
