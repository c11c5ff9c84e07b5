"""What a measurement is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.comparison.conversation import Conversations
from bench.comparison.server import Server

#: A number in the unit of its row, or a verdict.
Figure = float | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A line of the table.

    Attributes:
        key: Its name in the JSON.
        title: Its name in the table.
        form: How one figure is written.
    """

    key: str
    title: str
    form: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What one turn of all servers shares.

    Attributes:
        name: Part of every prompt, so that no round knows the prompts of another.
        conversations: Makes the prompts.
        scratch: A folder for this server in this round.
    """

    name: str
    conversations: Conversations
    scratch: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Something done to a running server that gives the figures of some rows.

    Attributes:
        name: For ``--only``.
        rows: What it fills.
        run: Does it; the server may be another process afterwards, or stopped.
        once: Whether one round is enough, for what noise hardly changes.
    """

    name: str
    rows: tuple[Row, ...]
    run: Callable[[Server, Round], Mapping[str, Figure]]
    once: bool = False


MILLISECONDS = "{:,.0f} ms"
