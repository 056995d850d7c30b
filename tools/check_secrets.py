"""Find private keys and access tokens in the files that git tracks: python tools/check_secrets.py [FILE…]"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

KINDS = {
    "private key": r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----\s*[A-Za-z0-9+/=]{20}",
    "AWS key": r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",
    "GitHub token": r"\b(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{60,})\b",
    "GitLab token": r"\bglpat-[A-Za-z0-9_-]{20,}\b",
    "Slack token": r"\bxox[abprs]-[A-Za-z0-9-]{20,}\b",
    "Hugging Face token": r"\bhf_[A-Za-z]{34}\b",
    "PyPI token": r"\bpypi-AgEIcHlwaS5vcmc[A-Za-z0-9_-]{50,}\b",
    "web token": r"\beyJ[A-Za-z0-9_-]{15,}\.eyJ[A-Za-z0-9_-]{15,}\.[A-Za-z0-9_-]{15,}\b",
    "password in an address": r"\b[a-z][a-z0-9+]*://[^\s/:@\"'<>{}]+:[^\s/@\"'<>{}]{3,}@",
    "assigned secret": r"(?i:\b(?:password|secret|api_?key|access_?token)\b[\"']?\s*[:=]\s*[\"'])[A-Za-z0-9+/=_-]{20,}",
}
PATTERN = re.compile("|".join(f"(?P<k{n}>{pattern})" for n, pattern in enumerate(KINDS.values())))
LARGEST = 5 * 2**20  # bytes of a file; larger ones are data


def secrets_in(text: str) -> Iterator[tuple[int, str]]:
    """Line and kind of everything that looks like a secret."""
    for match in PATTERN.finditer(text):
        assert match.lastgroup is not None
        yield text.count("\n", 0, match.start()) + 1, list(KINDS)[int(match.lastgroup[1:])]


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], capture_output=True, text=True, check=True).stdout
    return [Path(name) for name in listed.split("\0") if name]


def main(arguments: Sequence[str]) -> int:
    files = [Path(name) for name in arguments] or tracked()
    found = 0
    for path in files:
        if path.is_symlink() or not path.is_file() or path.stat().st_size > LARGEST:
            continue
        for line, kind in secrets_in(path.read_text(errors="replace")):
            print(f"{path}:{line}: {kind}", file=sys.stderr)
            found += 1
    print(f"{len(files)} files, {found} secrets")
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
