"""What other threads ask of the engine thread."""

from __future__ import annotations

from dataclasses import dataclass

from worker.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class SubmitSequence:
    """A generation is to run."""

    sequence: Sequence


@dataclass(frozen=True, slots=True)
class Cancel:
    """Its caller wants a generation to end."""

    sequence: Sequence


@dataclass(frozen=True, slots=True)
class Remove:
    """The emitter has ended a generation; only its place in the batch is left."""

    sequence: Sequence


@dataclass(frozen=True, slots=True)
class Stop:
    """Nothing is to run any more."""


Message = SubmitSequence | Cancel | Remove | Stop
