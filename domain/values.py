"""Names, small frozen values and limits that all modules use."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import datetime
from enum import IntEnum, StrEnum
from typing import Any, Final, NewType

JobId = NewType("JobId", str)
AgentId = NewType("AgentId", str)
#: Name of the API key that made a job, agent, file or batch.
Owner = NewType("Owner", str)
WorkerId = NewType("WorkerId", str)
EventId = NewType("EventId", str)
#: Name of a stream of events, ``job-…``, ``model-…``, ``worker-…``.
StreamName = NewType("StreamName", str)
#: ``sha256:`` followed by 64 lower-case hex digits.
Digest = NewType("Digest", str)

#: Largest seed that a request may carry; the sampler folds it into a 64-bit key.
SEED_MAX = 2**63 - 1
#: Lowest temperature of a random draw. Below it the likeliest token wins in float32 anyway, and the
#: reciprocal may overflow.
TEMPERATURE_MIN = 1e-6
#: Attempts that may die or fail before a job fails for good.
ATTEMPTS_MAX = 3
#: Workers in a row that may die on a job before it emits a token; then the job fails for good.
WORKER_DEATHS_MAX = 2


class Priority(StrEnum):
    """Which queue a job waits in."""

    INTERACTIVE = "interactive"
    BATCH = "batch"


class ParkReason(StrEnum):
    """Why an event is given to the reader of a subscription no more."""

    DELIVERIES = "deliveries"
    NACK = "nack"


class WaitingFor(StrEnum):
    """What a job needs before it can run.

    ``place``: a place in the batch. ``memory``: memory for its context. ``prefix``: the beginning
    of its prompt, which another job computes. ``model``: its model, which is not loaded.
    ``paused``: an operator has paused the start of jobs.
    """

    PLACE = "place"
    MEMORY = "memory"
    PREFIX = "prefix"
    MODEL = "model"
    PAUSED = "paused"


class PromptEncoding(IntEnum):
    """How a prompt's text becomes token ids; the attempts of one answer use the same.

    In ``MARKS_READ`` the marks of a chat template are read as tokens wherever they stand. In
    ``MARKS_AS_TEXT``, that of new answers, they are plain text in whatever the caller wrote.
    """

    MARKS_READ = 1
    MARKS_AS_TEXT = 2


class JobStatus(StrEnum):
    """Status of a job; the last four are terminal.

    ``held``: it waits for its instant or for other jobs, outside of its queue.
    """

    HELD = "held"
    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"

    @property
    def is_terminal(self) -> bool:
        """Whether no further event can change the job."""
        return self not in {JobStatus.HELD, JobStatus.QUEUED, JobStatus.RUNNING}


class StopReason(StrEnum):
    """Why a generation ended."""

    END_TURN = "end_turn"
    MAX_TOKENS = "max_tokens"
    STOP_SEQUENCE = "stop_sequence"
    CONTEXT_WINDOW = "model_context_window_exceeded"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are drawn, with every parameter set.

    The draw of token ``i`` is a function of the prompt, the tokens before it and ``(seed, i)``, so
    the same values give the same text alone, in a batch, or after a crash.

    Attributes:
        temperature: Below ``TEMPERATURE_MIN`` it is greedy.
        top_p: Nucleus mass in [0, 1]; 0 is greedy, 1 keeps everything.
        top_k: Number of candidates kept; 0 keeps everything.
        min_p: Floor relative to the likeliest token, in [0, 1); 0 keeps everything.
        presence_penalty: Subtracted from the logit of a token that the answer has; in [-2, 2].
        frequency_penalty: Subtracted once for each occurrence in the answer; in [-2, 2].
        repetition_penalty: Divides the logit of a token that occurs in the window, or multiplies
            a negative one; greater than 0, 1 for none.
        repetition_context_size: The window: so many last tokens of prompt and answer; 0 for all.
        logit_bias: Pairs of a token id and what is added to its logit, in [-100, 100], by id.
        xtc_probability: How often all candidates but the least likely of those above a threshold
            are removed, in [0, 1]; 0 for never.
        xtc_threshold: The threshold, a probability in [0, 0.5].
        seed: In ``[0, SEED_MAX]``; drawn at acceptance when the caller gave none.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    repetition_context_size: int = 0
    logit_bias: tuple[tuple[int, float], ...] = ()
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    seed: int = 0

    @property
    def is_greedy(self) -> bool:
        """Whether the most probable token is the only candidate."""
        return self.temperature < TEMPERATURE_MIN or self.top_p <= 0

    @property
    def has_penalties(self) -> bool:
        """Whether logits depend on the tokens so far, or have a bias."""
        return bool(
            self.presence_penalty
            or self.frequency_penalty
            or self.repetition_penalty != 1
            or self.logit_bias
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOptions:
    """A caller's sampling parameters, as in ``Sampling``; ``None`` leaves one open."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    repetition_context_size: int | None = None
    logit_bias: tuple[tuple[int, float], ...] | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None

    def given(self) -> dict[str, Any]:
        """Return the parameters that are set, by their names."""
        found = {name: getattr(self, name) for name in SAMPLING_NAMES}
        return {name: value for name, value in found.items() if value is not None}


#: Names of the parameters that a caller may leave open.
SAMPLING_NAMES: Final = tuple(one.name for one in fields(SamplingOptions))


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingWish(SamplingOptions):
    """The caller's sampling parameters; ``None`` means the model's default.

    The seed is always set: it is drawn at acceptance, so that the log alone is enough to repeat the
    answer.
    """

    seed: int = 0

    def resolve(self, defaults: Sampling) -> Sampling:
        """Return these parameters, completed from ``defaults``, whose seed is ignored."""
        return replace(defaults, **self.given(), seed=self.seed)

    def to_json(self) -> dict[str, Any]:
        """Return the parameters that are set, and the seed."""
        return self.given() | {"seed": self.seed}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SamplingWish:
        """Return the parameters that ``to_json`` returned, read from JSON."""
        return cls(**{**data, "logit_bias": bias_from_json(data.get("logit_bias"))})


def bias_from_json(
    pairs: Iterable[Iterable[Any]] | None,
) -> tuple[tuple[int, float], ...] | None:
    """Return the pairs of a ``logit_bias``, which JSON holds as lists."""
    return None if pairs is None else tuple((token, bias) for token, bias in pairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Token counts of one job, or of several.

    Attributes:
        completion_tokens: Of the answer, reasoning included.
        reasoning_tokens: The part of the answer that is reasoning, with the tags around it.
        kept_tokens: The part of the prompt that fills whole blocks kept for later.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    kept_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """Those of the prompt and the answer."""
        return self.prompt_tokens + self.completion_tokens

    def __add__(self, other: Usage) -> Usage:
        """Return both together."""
        sums = {
            one.name: getattr(self, one.name) + getattr(other, one.name) for one in fields(self)
        }
        return Usage(**sums)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Durations in milliseconds, each measured inside one process on a monotonic clock.

    Attributes:
        queued_ms: From the acceptance until the prompt is prepared.
        admission_ms: From then until the engine has admitted it to the batch.
        restore_ms: From the admission until the cached part of the prompt is restored.
        prefill_ms: From the admission until the prompt is computed; includes ``restore_ms``.
        first_token_ms: From the submission to the engine until the first token.
        decode_ms: From the first token until the end.
    """

    queued_ms: float = 0.0
    admission_ms: float = 0.0
    restore_ms: float = 0.0
    prefill_ms: float = 0.0
    first_token_ms: float = 0.0
    decode_ms: float = 0.0


class Degree(StrEnum):
    """How far the engine can do something."""

    NO = "no"
    PARTLY = "partly"
    YES = "yes"


@dataclass(frozen=True, slots=True)
class Ability:
    """How far the engine can do something with a model.

    Attributes:
        why: Why it is not ``YES``; where it is, what else is known, or empty.
    """

    degree: Degree = Degree.YES
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAbilities:
    """What the engine can do with a model; its network decides, and no setting.

    Attributes:
        prefix_cache: Contexts are kept and continued. Partly: at checkpoints only.
        batched_rows: Several sequences are computed in one pass. Partly: prompts are not.
        speculation: Tokens are drafted and verified several at a time.
        int8: Keys and values are kept in 8 bits. Partly: those of some layers.
        structured_output: A grammar restricts the answer.
    """

    prefix_cache: Ability = Ability()
    batched_rows: Ability = Ability()
    speculation: Ability = Ability()
    int8: Ability = Ability()
    structured_output: Ability = Ability()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """The loaded model, as the worker reports it.

    Attributes:
        id: The name clients use, e.g. ``semantic-demo`` or a hub id.
        fingerprint: Digest of the weights and code that compute the answers.
        context_length: Longest sequence in tokens, prompt and answer together.
        description: One sentence for people.
        created_at: RFC 3339 instant at which the weights were written.
        abilities: ``None`` for a model that generates no text.
    """

    id: str
    fingerprint: str
    context_length: int
    description: str
    created_at: str
    abilities: ModelAbilities | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingJob:
    """A job that a worker has handed to its engine, and that does not run.

    Attributes:
        position: Number of the engine's waiting jobs that start before it.
    """

    id: JobId
    waiting_for: WaitingFor
    position: int
    priority: Priority = Priority.INTERACTIVE


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheFigures:
    """Sizes of the KV cache of a worker.

    Attributes:
        ram_blocks: Blocks in memory, those of running sequences included.
        ram_used_bytes: Their size.
        ram_budget_bytes: Upper bound of their size.
        disk: ``on``, ``paused``, ``scanning`` or ``off``: whether blocks go to the disk now.
        disk_blocks: Blocks on disk, of all models.
        disk_used_bytes: Size of their files.
        disk_budget_bytes: Upper bound of that size.
        ram_held_bytes: The part of ``ram_used_bytes`` that cannot be freed at once: running
            sequences, what they start from, and contexts that the disk does not have yet.
        full_s: Seconds that an interactive job has waited for memory, of those that wait now the
            longest; 0 if none does.
        ram_live_bytes: The part of ``ram_used_bytes`` that running sequences reserve.
        weights_bytes: Size of the weights; 0 where it is not reported.
        ceiling_bytes: Most memory that the engine takes; 0 where it is not reported.
    """

    ram_blocks: int
    ram_used_bytes: int
    ram_budget_bytes: int
    disk: str = "off"
    disk_blocks: int = 0
    disk_used_bytes: int = 0
    disk_budget_bytes: int = 0
    ram_held_bytes: int = 0
    full_s: float = 0.0
    ram_live_bytes: int = 0
    weights_bytes: int = 0
    ceiling_bytes: int = 0

    @property
    def fill(self) -> float:
        """The share of the memory for contexts that cannot be freed at once."""
        return self.ram_held_bytes / self.ram_budget_bytes if self.ram_budget_bytes else 0.0


@dataclass(slots=True, kw_only=True)
class DraftFigures:
    """What speculation has done since the worker started.

    Attributes:
        drafts: Drafts that were verified.
        accepted_tokens: How many of them the model drew.
    """

    drafts: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0

    def record(self, drafted: int, accepted: int) -> None:
        """Count one more draft."""
        self.drafts += 1
        self.drafted_tokens += drafted
        self.accepted_tokens += accepted


def digest_of(payload: bytes) -> Digest:
    """Return the content address of ``payload``."""
    return Digest("sha256:" + hashlib.sha256(payload).hexdigest())


def rfc3339(moment: datetime) -> str:
    """Return a UTC moment in RFC 3339 with microseconds, as the log writes it; such texts sort.

    >>> rfc3339(datetime(2026, 3, 1, 7, 5))
    '2026-03-01T07:05:00.000000Z'
    """
    return moment.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


class AfterCondition(StrEnum):
    """How an earlier job must have ended for a later one to run."""

    COMPLETED = "completed"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Predecessor:
    """An earlier job that a job waits for.

    Attributes:
        name: By which the prompt names its answer; its index in a list.
    """

    name: str
    job: str
    condition: AfterCondition = AfterCondition.COMPLETED
