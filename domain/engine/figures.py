"""Live figures of a worker: its rows, and what it has computed so far. Pure."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum

from domain.values import JobId


class RowPhase(StrEnum):
    """What the engine does for a row: reads blocks, computes its prompt, or generates."""

    RESTORE = "restore"
    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFigures:
    """A running sequence at one instant.

    Attributes:
        read_tokens: Those that are restored or computed.
        generated_tokens: Tokens of the answer over all attempts.
        tokens_per_s: Generated tokens per second of this attempt; ``None`` before the second one.
    """

    job: JobId
    phase: RowPhase
    prompt_tokens: int
    read_tokens: int
    cached_tokens: int
    generated_tokens: int
    max_tokens: int
    tokens_per_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkCounts:
    """What an engine has done since it was made; none of the counts goes back.

    Attributes:
        computed_tokens: Prompt tokens that were computed.
        prompt_tokens: Tokens of the prompts whose first token was generated.
        first_token_ms: Sum of their times to the first token, in milliseconds.
    """

    generated_tokens: int = 0
    computed_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    first_tokens: int = 0
    first_token_ms: float = 0.0

    def since(self, earlier: WorkCounts) -> WorkCounts:
        """Return what was done after an earlier count of the same engine."""
        return WorkCounts(**{one: getattr(self, one) - getattr(earlier, one) for one in _COUNTS})

    def __add__(self, other: WorkCounts) -> WorkCounts:
        """Return both together."""
        return WorkCounts(**{one: getattr(self, one) + getattr(other, one) for one in _COUNTS})

    @property
    def first_token_mean_ms(self) -> float | None:
        """The mean time to the first token, in milliseconds."""
        return self.first_token_ms / self.first_tokens if self.first_tokens else None

    @property
    def cached_share(self) -> float | None:
        """The share of the prompts that came from the cache, from 0 to 1."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else None


_COUNTS = tuple(one.name for one in fields(WorkCounts))


@dataclass(frozen=True, slots=True)
class LiveFigures:
    """What an engine does now.

    Attributes:
        slow_step: The step that has taken half of its limit, in words; ``None`` if none has.
    """

    rows: tuple[RowFigures, ...]
    counts: WorkCounts
    slow_step: str | None = None
