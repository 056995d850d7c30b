"""The search for secrets finds real ones and nothing in this repository. (Examples are put together here.)"""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.check_secrets import main, secrets_in

from fedchoir.deploy.keys import make_server, make_site

EXAMPLES = {
    "AWS key": "AKIA" + "IOSFODNN7EXAMPLE",
    "GitHub token": "ghp" + "_" + "a1B2" * 9,
    "Slack token": "xoxb" + "-123456789012-" + "abcdefghijkl",
    "password in an address": "https://user" + ":hunter2@" + "example.org/simple",
    "assigned secret": 'api_key = "' + "0123456789abcdef" * 2 + '"',
}


@pytest.mark.parametrize(("kind", "text"), EXAMPLES.items())
def test_examples_are_found(kind: str, text: str) -> None:
    assert list(secrets_in(f"first line\n{text}\n")) == [(2, kind)]


def test_the_keys_that_fedchoir_makes_are_found(tmp_path: Path) -> None:
    make_server(tmp_path, ["127.0.0.1"])
    make_site(tmp_path, "a")
    for name in ("ca.key", "server.key", "a"):
        assert [kind for _, kind in secrets_in((tmp_path / name).read_text())] == ["private key"]
    for name in ("ca.crt", "server.crt", "a.pub"):
        assert not list(secrets_in((tmp_path / name).read_text()))
    assert main([str(tmp_path / "a")]) == 1


def test_this_repository_has_none() -> None:
    assert main([]) == 0
