"""Check that source and documentation use the project's vocabulary (`tools/words.toml`). Run by ``make lint``.

Identifiers are split into words (``heard_by`` is "heard", "by"), so that a discouraged word cannot hide in a name.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SUFFIXES = {".py", ".md", ".toml", ".js", ".css"}
CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|_")


def main() -> int:
    rules = tomllib.loads((ROOT / "tools" / "words.toml").read_text(encoding="utf-8"))
    words = {word: rule["use"] for rule in rules["word"] for word in rule["not"]}
    phrases = {phrase: rule["use"] for rule in rules["word"] for phrase in rule.get("phrases", [])}
    exceptions = [(re.compile(e["path"]), re.compile(e["text"])) for e in rules["exception"]]
    found = 0
    for path in files(rules["paths"]):
        name = path.relative_to(ROOT).as_posix()
        allowed = [text for where, text in exceptions if where.fullmatch(name)]
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            rest = line
            for text in allowed:
                rest = text.sub(" ", rest)
            for word, use in hits(rest, words, phrases):
                print(f"{name}:{number}: {word!r}: use {use}: {line.strip()[:100]}")
                found += 1
    if found:
        print(f"{found} discouraged words. Use the project's terms, or add a justified exception to tools/words.toml.")
    return min(found, 1)


def files(paths: list[str]) -> Iterator[Path]:
    for entry in paths:
        path = ROOT / entry
        yield from [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.suffix in SUFFIXES)


def hits(line: str, words: dict[str, str], phrases: dict[str, str]) -> Iterator[tuple[str, str]]:
    for token in re.findall(r"[A-Za-z_]+", line):
        for word in CAMEL.split(token):
            if word.lower() in words:
                yield word, words[word.lower()]
    for phrase, use in phrases.items():
        if phrase in line.lower():
            yield phrase, use


if __name__ == "__main__":
    sys.exit(main())
