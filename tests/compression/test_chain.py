"""The text of ``--compress``: every chain has one spelling, and anything else is refused in one line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedchoir.compression.chain import Chain, parse
from fedchoir.core.wire import check_compression
from fedchoir.utils.errors import UsageError

CHAINS = st.builds(
    lambda select, rounding, zstd: Chain(**select, rounding=rounding, zstd=zstd),
    st.one_of(
        st.just({}),
        st.floats(0, 1, exclude_min=True, exclude_max=True).map(lambda share: {"topk": share}),
        st.integers(1, 10_000).map(lambda rank: {"lowrank": rank}),
    ),
    st.sampled_from([None, "fp16", "int8"]),
    st.booleans(),
).filter(lambda chain: str(chain) != "")


@given(CHAINS)
def test_a_chain_is_read_back_from_its_text(chain: Chain) -> None:
    assert parse(str(chain)).up == parse(str(chain)).down == chain


@given(CHAINS, CHAINS)
def test_each_direction_may_have_its_own(up: Chain, down: Chain) -> None:
    both = parse(f"up={up}, down={down}")
    assert (both.up, both.down) == (up, down)
    assert parse(f"down={down}").up is None


def test_without_a_text_nothing_is_compressed() -> None:
    assert parse("").up is parse("").down is None


@pytest.mark.parametrize(
    "text",
    [
        "gzip", "int8+fp16", "zstd+int8", "int8+int8", "topk:0.1+lowrank:4", "topk", "topk:0", "topk:1", "topk:x",
        "lowrank:0", "lowrank:1.5", "fp16:2", "int8+", "+", "left=int8", "up=int8,up=fp16", "int8,down=fp16", "up=",
    ],
)  # fmt: skip
def test_anything_else_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(UsageError, match="compress = ") as error:
        parse(text)
    assert "\n" not in str(error.value)
    assert repr(text) in str(error.value)


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "zstandard", None)
    check_compression("int8")
    with pytest.raises(UsageError, match=r"fedchoir\[compression\]"):
        check_compression("down=int8+zstd")
