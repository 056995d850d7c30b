"""Secrets on disk."""

from __future__ import annotations

from pathlib import Path

from fedchoir.privacy.secure_aggregation.store import FolderStore


def test_stored_keys_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "sums")
    store["key_shares"] = "one"
    store["key_shares"] = "two"
    assert ((tmp_path / "sums" / "key_shares").stat().st_mode & 0o777, dict(store)) == (0o600, {"key_shares": "two"})
    assert (store.pop("key_shares"), store.pop("key_shares", None), len(store)) == ("two", None, 0)
