"""Refuse words of ``words.toml`` in code and docs: ``python -m tests.architecture.wordlist``."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
RULES = Path(__file__).with_name("words.toml")
#: Folders and files that are checked.
CHECKED = ("api", "worker", "domain", "ops", "migrations", "docs", "README.md")
SUFFIXES = {".py", ".md"}


@dataclass(frozen=True, slots=True)
class Finding:
    """A line that holds a refused word.

    Attributes:
        file: Path below the repository's root.
        number: Of the line, from 1.
        word: The word.
        instead: What to write.
    """

    file: str
    number: int
    word: str
    instead: str


@dataclass(frozen=True, slots=True)
class WordList:
    """Refused words, what to write instead, and the lines that are exempt."""

    pattern: re.Pattern[str]
    instead: dict[str, str]
    allowed: tuple[tuple[str, str], ...]

    @classmethod
    def load(cls, rules: Path = RULES) -> WordList:
        """Return the rules of a file."""
        data = tomllib.loads(rules.read_text())
        instead = {
            word.strip(): advice
            for words, advice in data["instead"].items()
            for word in words.split(",")
        }
        # An underscore parts words in identifiers, so it is no letter here.
        alternatives = "|".join(re.escape(word) for word in instead)
        pattern = re.compile(rf"(?<![A-Za-z])({alternatives})(?![A-Za-z])", re.IGNORECASE)
        allowed = tuple((entry["file"], entry["line"]) for entry in data.get("allowed", ()))
        return cls(pattern, instead, allowed)

    def check(self, file: str, text: str) -> Iterator[Finding]:
        """Yield the findings of one file.

        Args:
            file: Path below the repository's root.
            text: Its content.
        """
        fenced = False
        for number, line in enumerate(text.splitlines(), 1):
            if file.endswith(".md") and line.lstrip().startswith("```"):
                fenced = not fenced
            if fenced or any(file == name and part in line for name, part in self.allowed):
                continue
            for match in self.pattern.finditer(line):
                word = match.group(1)
                yield Finding(file, number, word, self.instead[word.lower()])


def checked_files(root: Path = ROOT) -> Iterator[Path]:
    """Yield the files that the rules hold for."""
    for name in CHECKED:
        place = root / name
        found = [place] if place.is_file() else sorted(place.rglob("*"))
        yield from (path for path in found if path.suffix in SUFFIXES)


def main(arguments: Sequence[str] = ()) -> int:
    """Print the findings, of all files or of those below the paths given; 1 if there are any."""
    words = WordList.load()
    findings = [
        finding
        for path in checked_files()
        if not arguments or str(path.relative_to(ROOT)).startswith(tuple(arguments))
        for finding in words.check(str(path.relative_to(ROOT)), path.read_text(encoding="utf-8"))
    ]
    for one in findings:
        print(f"{one.file}:{one.number}: {one.word!r}; write: {one.instead}")  # noqa: T201 - a command
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
