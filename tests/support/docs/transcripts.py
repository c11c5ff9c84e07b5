"""Console blocks of a page: commands, and the output that the page shows.

A page shows real output. Ids, times, process ids and versions differ from run to run, so each is
compared by its form; ``…`` stands for any text. An id that a page shows in an output and uses in a
later command is replaced by that of the present run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

#: A block with this comment before it is not run, for the reason in it.
_BLOCK = re.compile(
    r"(?:<!-- not run: (?P<reason>[^>]*) -->\n)?"
    r"^```(?P<language>[a-z]*)\n(?P<body>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
_HEREDOC = re.compile(r"<<'(\w+)'")
#: Texts of a page that differ from run to run, and what may stand in their place.
_VOLATILE = {
    r"(?:[a-z]+[-_])01[0-9a-f]{30}": r"[a-z]+[-_][0-9a-f]{32}",
    r"\d{4}-\d\d-\d\d[T ][\d:.]+Z?": r"\d{4}-\d\d-\d\dT?[\d:.]+Z?",
    r"\b[0-9a-f]{64}\b": "[0-9a-f]{64}",
    r"(?<=sha256:)[0-9a-f]{12}": "[0-9a-f]{12}",
    r"(?<=pid )\d+": r"\d+",
    r"\d+ (?:events|texts) verify": r"\d+(?:events|texts)verify",
    r"(?<=curl/)[\d.]+": r"[\d.]+",
    r"\+?[\d,.]+ (?:ms|s|tokens/s|events/s|bytes)\b": r"\+?[\d,.]+(?:ms|s|tokens/s|events/s|bytes)",
    r"(?:redis|valkey)-server": "(?:redis|valkey)-server",
    r"SQLite [\d.]+": r"SQLite[\d.]+",
    "…": ".*",
}
_ANY_VOLATILE = re.compile("|".join(f"({text})" for text in _VOLATILE))


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A command of a page, and the output that the page shows; empty for any output."""

    command: str
    output: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A console block of a page; ``reason`` says why it is not run, if it is not."""

    steps: tuple[Step, ...]
    reason: str | None


@dataclass(slots=True)
class Transcript:
    """Compares outputs with a page, and remembers which text stands for which.

    Attributes:
        bound: The present text for each id of the page.
    """

    bound: dict[str, str] = field(default_factory=dict)

    def command(self, step: Step) -> str:
        """Return the command with the present ids."""
        command = step.command
        for shown, present in self.bound.items():
            command = re.sub(rf"\b{re.escape(shown)}\b", lambda _, to=present: to, command)  # type: ignore[misc]
        return command

    def matches(self, shown: str, actual: str) -> bool:
        """Return whether an output has the form of the shown one, and bind its ids."""
        names: list[str] = []
        pattern = ""
        for literal, volatile, form in _pieces(shown):
            pattern += re.escape(_squashed(literal))
            if volatile:
                names.append(volatile)
                pattern += f"({form})"
        found = re.fullmatch(pattern, _squashed(actual), re.DOTALL)
        if found is None:
            return False
        self.bound.update(zip(names, found.groups(), strict=True))
        return True


def blocks(page: str) -> Iterator[Block]:
    """Yield the blocks of a page that have commands."""
    for found in _BLOCK.finditer(page):
        if re.match(r"\$ ", found["body"]):
            assert found["language"] == "console", f"write ```console: {found['body'][:60]}"
            yield Block(steps=tuple(_steps(found["body"])), reason=found["reason"])
        else:
            assert found["language"] not in {"console", "sh", "bash", "shell"}, found["body"][:60]


def _steps(body: str) -> Iterator[Step]:
    lines = body.splitlines()
    while lines:
        command = [lines.pop(0).removeprefix("$ ")]
        while command[-1].endswith("\\"):
            command.append(lines.pop(0))
        heredoc = _HEREDOC.search(command[0])
        while heredoc and command[-1] != heredoc[1]:
            command.append(lines.pop(0))
        output = []
        while lines and not lines[0].startswith("$ "):
            output.append(lines.pop(0))
        yield Step(command="\n".join(command), output="\n".join(output).strip())


def _pieces(shown: str) -> Iterator[tuple[str, str, str]]:
    """Yield each fixed text, with the volatile text after it and its form."""
    forms = list(_VOLATILE.values())
    end = 0
    for found in _ANY_VOLATILE.finditer(shown):
        yield shown[end : found.start()], found[0], forms[(found.lastindex or 1) - 1]
        end = found.end()
    yield shown[end:], "", ""


def _squashed(text: str) -> str:
    """Return a text without white space: pages break long lines."""
    return re.sub(r"\s+", "", text)
