"""Messages from other threads to the engine thread."""

from __future__ import annotations

from dataclasses import dataclass

from worker.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class SubmitSequence:
    """Run a generation."""

    sequence: Sequence


@dataclass(frozen=True, slots=True)
class Cancel:
    """End a generation at its caller's request."""

    sequence: Sequence


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove a generation from the batch; the emitter has decided its outcome."""

    sequence: Sequence


@dataclass(frozen=True, slots=True)
class Stop:
    """End the engine thread."""


Message = SubmitSequence | Cancel | Remove | Stop
