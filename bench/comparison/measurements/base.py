"""The interface of a measurement."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.comparison.conversation import Conversations
from bench.comparison.server import Server

#: A number in the unit of its row, or a verdict as text.
Figure = float | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of the table.

    Attributes:
        key: Its name in the JSON.
        title: Its name in the table.
        form: Format of one figure.
    """

    key: str
    title: str
    form: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """The parameters that all servers of a round share.

    Attributes:
        name: Part of every prompt, so that no prompt of another round is cached.
        conversations: Makes the prompts.
        scratch: A directory for this server in this round.
    """

    name: str
    conversations: Conversations
    scratch: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Runs on a server and returns the figures of some rows.

    Attributes:
        name: For ``--only``.
        rows: The rows that it fills.
        run: Measures; the server may be restarted or stopped afterwards.
        once: Whether one round is enough, for figures that noise hardly changes.
    """

    name: str
    rows: tuple[Row, ...]
    run: Callable[[Server, Round], Mapping[str, Figure]]
    once: bool = False


MILLISECONDS = "{:,.0f} ms"
