"""Counts the product, and what of it one request takes: ``python -m tests.architecture.figures``.

Prints the files, lines and statements of the product, and how many of its files have a function
that runs for one request to the routes on fake ports: ``POST /v1/messages`` until its job is in a
line, and ``GET /v1/jobs`` with one job. Imports do not count. ``CEILINGS`` may only fall.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from types import FrameType
from typing import Any, Final

from api.http.messages import Reply, StreamReply
from tests.support.builders.api import fake_api, leave
from tests.support.builders.generation_requests import MESSAGES, STREAM

ROOT: Final = Path(__file__).parents[2]
PRODUCT: Final = ("api", "domain", "migrations", "ops", "worker")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What is counted.

    Attributes:
        files: Of the product.
        lines: Of these files.
        statements: Of these files, without docstrings.
        message_files: Files that run for ``POST /v1/messages`` until its job is in a line.
        jobs_files: Files that run for ``GET /v1/jobs``.
    """

    files: int
    lines: int
    statements: int
    message_files: int
    jobs_files: int

    def table(self) -> str:
        """Return the table of ``docs/quality.md``."""
        rows = (
            ("files of the product", self.files),
            ("lines", self.lines),
            ("statements", self.statements),
            (
                "files that run for `POST /v1/messages` until its job is in a line",
                self.message_files,
            ),
            ("files that run for `GET /v1/jobs`", self.jobs_files),
        )
        return "\n".join(f"| {what} | {count:,} |" for what, count in rows)


#: The figures of today, lines and statements rounded up to a hundred. Lower what has fallen; a
#: change that must raise one states why.
CEILINGS: Final = Figures(
    files=486,
    lines=98_161,
    statements=48_586,
    message_files=38,
    jobs_files=16,
)


def figures() -> Figures:
    """Count all."""
    texts = [path.read_text(encoding="utf-8") for path in sources()]
    message, jobs = asyncio.run(_requests())
    return Figures(
        files=len(texts),
        lines=sum(len(text.splitlines()) for text in texts),
        statements=sum(map(statements_of, texts)),
        message_files=len(message),
        jobs_files=len(jobs),
    )


def statements_of(text: str) -> int:
    """Return the number of statements of a module; a docstring is none."""
    nodes = statements_in(ast.parse(text))
    return sum(not (isinstance(node, ast.Expr) and _is_text(node.value)) for node in nodes)


def statements_in(tree: ast.AST) -> Iterator[ast.stmt]:
    """Yield all statements of a tree, without a look into expressions: they have none."""
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        for node in getattr(tree, name, ()):
            if isinstance(node, ast.stmt):
                yield node
            yield from statements_in(node)


def _is_text(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def above(found: Figures, ceilings: Figures = CEILINGS) -> list[str]:
    """Return a sentence for each figure that is above its ceiling."""
    pairs = (
        (one.name, getattr(found, one.name), getattr(ceilings, one.name)) for one in fields(found)
    )
    return [f"{name} is {now:,}, above {most:,}" for name, now, most in pairs if now > most]


def sources() -> Iterator[Path]:
    """Yield the files of the product."""
    for package in PRODUCT:
        yield from sorted((ROOT / package).rglob("*.py"))


class Recorder:
    """Notes the files of the product whose functions begin to run, on all threads.

    Only threads that start after the recorder are watched.
    """

    def __init__(self) -> None:
        self._found: set[str] | None = None
        self._before = sys.getprofile()
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    def close(self) -> None:
        """Watch no longer."""
        sys.setprofile(self._before)
        threading.setprofile(self._before)

    @contextmanager
    def recording(self) -> Iterator[set[str]]:
        """Collect, within the block, the paths of files below the root."""
        self._found = found = set[str]()
        try:
            yield found
        finally:
            self._found = None

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        code, found = frame.f_code, self._found
        # Bodies of modules and classes are no functions: an import runs them.
        if event != "call" or found is None or not code.co_flags & inspect.CO_OPTIMIZED:
            return
        path = Path(code.co_filename)
        if path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in PRODUCT:
            found.add(str(path.relative_to(ROOT)))


async def _requests() -> tuple[set[str], set[str]]:
    """Return the files that run for each of the two requests."""
    recorder = Recorder()
    try:
        async with fake_api() as api:
            route, request = api.prepared("POST", MESSAGES, STREAM)
            with recorder.recording() as message:
                reply = await route.handler(request)
                await api.only_job()
            assert isinstance(reply, StreamReply)
            route, request = api.prepared("GET", "/v1/jobs")
            with recorder.recording() as jobs:
                listed = await route.handler(request)
            assert isinstance(listed, Reply)
            assert listed.status == 200
            await leave(reply)
    finally:
        recorder.close()
    return message, jobs


def main() -> int:
    """Print the figures and what is above its ceiling; the exit code is 1 if anything is."""
    found = figures()
    wrong = above(found)
    sys.stdout.write("\n".join([found.table(), *wrong, ""]))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
