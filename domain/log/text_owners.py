"""Which texts of the log are still needed. Pure.

A text is needed while an owner needs it that refers to it: a job, an agent, a file, a batch or a
schedule. An
owner stops to need its texts when it is deleted, or when a rule of retention overtakes it. The
events stay; they hold digests only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from domain.events.agent import (
    AgentChanged,
    AgentDeleted,
    AgentForgotten,
    AgentForked,
    AgentRegistered,
    AgentTurnAdded,
)
from domain.events.batch import (
    BatchDeleted,
    BatchEnded,
    BatchFailed,
    BatchSubmitted,
    FileCreated,
    FileDeleted,
)
from domain.events.job import JobHidden
from domain.events.schedule import ScheduleAdded, ScheduleRemoved
from domain.log.record import AGENT_STREAM, RecordedEvent

#: Types of events, beside those that name texts, that begin or end the life of an owner.
LIFE_TYPES: Final = tuple(
    cls.__name__
    for cls in (
        AgentChanged,
        AgentDeleted,
        AgentForgotten,
        AgentForked,
        AgentRegistered,
        AgentTurnAdded,
        BatchDeleted,
        BatchEnded,
        BatchFailed,
        BatchSubmitted,
        FileCreated,
        FileDeleted,
        JobHidden,
        ScheduleAdded,
        ScheduleRemoved,
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionCut:
    """What a rule of retention overtakes; by default nothing.

    Attributes:
        ended_before: RFC 3339 instant; the texts of jobs and batches that ended earlier go.
        expired_by: RFC 3339 instant; the contents of files that expired by then go.
    """

    ended_before: str | None = None
    expired_by: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedJob:
    """A job as an owner of texts.

    Attributes:
        id: Its stream.
        position: Position of its first event.
        ended_at: When it ended, ``None`` while it is open.
        batch: The batch that it is a line of.
        is_erased: Whether its events were in an archive that was erased.
    """

    id: str
    position: int
    ended_at: str | None
    agent: str | None = None
    batch: str | None = None
    is_erased: bool = False


@dataclass(slots=True)
class _AgentLife:
    """The present life of a registered agent: digests of its own events, and its turns."""

    texts: set[str]
    profile: str
    turns: list[str] = field(default_factory=list)
    inherited: int = 0


@dataclass(slots=True)
class _File:
    content: str | None
    expires_at: str | None
    is_deleted: bool = False


@dataclass(slots=True)
class _Batch:
    content: str
    client_name: str | None
    input_file: str | None
    ended_at: str | None = None
    errors: str | None = None
    is_deleted: bool = False
    results: list[str] = field(default_factory=list)


class TextOwners:
    """The owners of a log, and which of their texts are needed.

    Args:
        texts: Digests of the texts by the stream that refers to them, the chunks of files included.
        events: Those of ``LIFE_TYPES``, in order.
        parts: Digests of the chunks of a manifest, by the manifest's digest.
    """

    def __init__(
        self,
        jobs: Iterable[OwnedJob],
        texts: Mapping[str, set[str]],
        events: Iterable[RecordedEvent],
        *,
        parts: Mapping[str, set[str]],
    ) -> None:
        self.jobs = {job.id: job for job in jobs}
        self.texts = texts
        self._parts = parts
        self._agents: dict[str, _AgentLife] = {}
        self._turns: set[str] = set()
        self._gone_at: dict[str, int] = {}
        self._files: dict[str, _File] = {}
        self._batches: dict[str, _Batch] = {}
        self._hidden: set[str] = set()
        self._schedules: dict[str, str] = {}
        for event in events:
            self.fold(event)

    def fold(self, event: RecordedEvent) -> None:
        """Add the next event."""
        if event.stream.startswith(AGENT_STREAM):
            self._fold_agent(event)
        elif event.type == JobHidden.__name__:
            self._hidden.add(event.stream)
        elif event.type == ScheduleAdded.__name__:
            self._schedules[event.stream] = event.data["job"]
        elif event.type == ScheduleRemoved.__name__:
            self._schedules.pop(event.stream, None)
        elif event.type in {FileCreated.__name__, FileDeleted.__name__}:
            self._fold_file(event)
        else:
            self._fold_batch(event)

    def end_agent(self, agent: str, position: int) -> None:
        """Take an agent for deleted at a position."""
        self._forget_turns(self._agents.pop(agent, None), first=0)
        self._gone_at[agent] = position

    def has_agent(self, agent: str) -> bool:
        """Whether an agent of this name is registered."""
        return agent in self._agents

    def kept(self, cut: RetentionCut) -> set[str]:
        """Return the digests of the texts that an owner needs."""
        kept = set(self._schedules.values())
        for stream, digests in self.texts.items():
            if stream.startswith("job-") and not self.is_released(stream, cut):
                kept |= digests
        for life in self._agents.values():
            kept |= life.texts
        for digest in self._contents(cut):
            kept.add(digest)
            kept |= self._parts.get(digest, set())
        return kept

    def released(self, cut: RetentionCut) -> Iterator[str]:
        """Yield the jobs that need their texts no longer."""
        return (job for job in self.jobs if self.is_released(job, cut))

    def is_released(self, job_id: str, cut: RetentionCut) -> bool:
        """Whether a job needs its texts no longer; an unknown job needs them."""
        job = self.jobs.get(job_id)
        if job is None or job.ended_at is None or job_id in self._turns:
            return False
        if job.is_erased or job_id in self._hidden:
            return True
        if self._gone_at.get(job.agent or "", 0) > job.position:
            return True
        batch = self._batches.get(job.batch or "")
        if batch is not None:
            return not self._needs_lines(batch, cut)
        return cut.ended_before is not None and job.ended_at < cut.ended_before

    def waiting(self) -> int:
        """Return how many open jobs belong to an agent that was deleted after their acceptance."""
        return sum(
            job.ended_at is None and self._gone_at.get(job.agent or "", 0) > job.position
            for job in self.jobs.values()
        )

    def _contents(self, cut: RetentionCut) -> Iterator[str]:
        """Yield the manifests and faults that files and batches need."""
        for file in self._files.values():
            if file.content is not None and _is_shown(file, cut):
                yield file.content
        for batch in self._batches.values():
            if self._needs_lines(batch, cut):
                yield batch.content
                if batch.client_name is not None:
                    yield batch.client_name
            if batch.errors is not None and not batch.is_deleted and not _is_old(batch, cut):
                yield batch.errors

    def _needs_lines(self, batch: _Batch, cut: RetentionCut) -> bool:
        """Whether the lines of a batch, and the answers to them, can still be read."""
        if batch.ended_at is None:
            return True
        if batch.is_deleted:
            return False
        results = [self._files[name] for name in batch.results]
        if results:
            return any(_is_shown(file, cut) for file in results)
        source = self._files.get(batch.input_file or "")
        if source is not None and not _is_shown(source, cut):
            return False
        return not _is_old(batch, cut)

    def _fold_agent(self, event: RecordedEvent) -> None:
        agent, data = event.stream.removeprefix(AGENT_STREAM), event.data
        if event.type in {AgentDeleted.__name__, AgentForgotten.__name__}:
            self.end_agent(agent, event.position)
        elif event.type == AgentChanged.__name__:
            if (life := self._agents.get(agent)) is not None:
                life.texts.discard(life.profile)
                life.texts.add(data["profile"])
                life.profile = data["profile"]
        elif event.type == AgentTurnAdded.__name__:
            life = self._agents.get(agent)
            if life is not None:
                # A turn without an answer is replaced by the next one of its number.
                self._forget_turns(life, first=data["turn"] - life.inherited - 1)
                life.turns.append(data["job"])
                self._turns.add(data["job"])
        else:
            names = [data.get(name) for name in ("profile", "request", "output")]
            texts = {digest for digest in names if digest is not None}
            self._agents[agent] = _AgentLife(
                texts, profile=data["profile"], inherited=data.get("turn", 0)
            )

    def _forget_turns(self, life: _AgentLife | None, *, first: int) -> None:
        if life is not None:
            for job in life.turns[first:]:
                self._turns.discard(job)
            del life.turns[first:]

    def _fold_file(self, event: RecordedEvent) -> None:
        if event.type == FileDeleted.__name__:
            if event.stream in self._files:
                self._files[event.stream].is_deleted = True
            return
        data = event.data
        self._files[event.stream] = _File(data.get("content"), data.get("expires_at"))
        if (batch := self._batches.get(data.get("batch") or "")) is not None:
            batch.results.append(event.stream)

    def _fold_batch(self, event: RecordedEvent) -> None:
        if event.type == BatchSubmitted.__name__:
            data = event.data
            self._batches[event.stream] = _Batch(
                data["content"], data.get("client_name"), data.get("input_file")
            )
            return
        batch = self._batches.get(event.stream)
        if batch is None:
            return
        if event.type == BatchDeleted.__name__:
            batch.is_deleted = True
        else:
            batch.ended_at = event.recorded_at
            batch.errors = event.data.get("errors", batch.errors)


def cut_to_size(
    owners: TextOwners, sizes: Mapping[str, int], bytes_max: int, cut: RetentionCut, *, now: str
) -> RetentionCut:
    """Return the earliest cut under which the texts that are kept fit into ``bytes_max``.

    Args:
        sizes: Length in bytes of each stored text, by digest.
        bytes_max: Most bytes of all texts together.
        cut: What goes at any size.
        now: RFC 3339 instant; the texts of jobs that end later stay.
    """
    ends = {job.ended_at for job in owners.jobs.values() if job.ended_at is not None}
    instants = sorted(at for at in {*ends, now} if at > (cut.ended_before or "") and at <= now)

    def fits(chosen: RetentionCut) -> bool:
        return sum(sizes.get(digest, 0) for digest in owners.kept(chosen)) <= bytes_max

    if fits(cut) or not instants:
        return cut
    low, high = 0, len(instants) - 1
    while low < high:
        middle = (low + high) // 2
        if fits(RetentionCut(ended_before=instants[middle], expired_by=cut.expired_by)):
            high = middle
        else:
            low = middle + 1
    return RetentionCut(ended_before=instants[low], expired_by=cut.expired_by)


def _is_shown(file: _File, cut: RetentionCut) -> bool:
    if file.is_deleted:
        return False
    return file.expires_at is None or cut.expired_by is None or file.expires_at > cut.expired_by


def _is_old(batch: _Batch, cut: RetentionCut) -> bool:
    assert batch.ended_at is not None, "only a batch that ended is old"
    return cut.ended_before is not None and batch.ended_at < cut.ended_before
