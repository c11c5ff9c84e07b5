"""Cache events are in the log, after the events that cause them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from domain.events.cache import (
    CacheBlockRejected,
    CacheBlocksEvicted,
    CachePersistencePaused,
    CachePersistenceResumed,
)
from domain.kv.hashing import BlockHash
from domain.values import JobId, StreamName, WorkerId
from ops.blockstore.blocks import (
    RejectReason,
)
from ops.clock import SystemClock
from tests.support.builders.job_events import completed, draft, started, submitted
from tests.support.fakes.event_log import InMemoryEventLog
from tests.support.fakes.time import SequentialIds
from worker.cachestore.reports import ContextSaved, ContextStarted, Manifest
from worker.recording import cache_event_recorder as recorder_module
from worker.recording.cache_event_recorder import CacheEventRecorder

WAIT_S = 60.0
JOB = JobId("job-1")
WORKER = WorkerId("worker-1")
FINGERPRINT = "sha256:" + "ab" * 32
NAMES = tuple(BlockHash(bytes([number]) * 32) for number in range(4))


class World:
    def __init__(self) -> None:
        self.log = InMemoryEventLog()
        self.recorder = CacheEventRecorder(
            WORKER, log=self.log, ids=SequentialIds(), clock=SystemClock()
        )

    def submit(self, job: JobId = JOB, agent: str | None = "alice") -> None:
        self.log.append(StreamName(job), [draft(submitted(agent=agent))], expected_version=0)
        self.log.append(StreamName(job), [draft(started())], expected_version=1)

    def complete(self, job: JobId = JOB) -> None:
        self.log.append(StreamName(job), [draft(completed())], expected_version=2)

    def events(self, stream: str = "agent-alice") -> list[tuple[str, dict[str, Any]]]:
        return [(one.type, dict(one.data)) for one in self.log.load(StreamName(stream))]

    def settle(self) -> None:
        assert self.recorder.flush(WAIT_S)


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    with world.recorder:
        yield world


def kept(blocks: tuple[BlockHash, ...] = NAMES, job: JobId = JOB) -> ContextSaved:
    manifest = Manifest(fingerprint=FINGERPRINT, blocks=blocks, tail=None)
    return ContextSaved(label=job, manifest=manifest, tokens=256 * len(blocks))


def began(
    names: tuple[BlockHash, ...] = NAMES,
    *,
    restored: int = 0,
    disk: int = 0,
    diverged_at: int | None = None,
    fingerprint: str = FINGERPRINT,
    job: JobId = JOB,
) -> ContextStarted:
    return ContextStarted(
        label=job,
        fingerprint=fingerprint,
        names=names,
        block_tokens=256,
        prompt_tokens=256 * len(names) + 10,
        restored_tokens=restored,
        disk_tokens=disk,
        diverged_at=diverged_at,
        took_ms=1.5,
    )


def test_manifest_is_written_after_the_end_of_its_job_and_follows_from_it(world: World) -> None:
    world.submit()
    world.recorder.record(kept())
    assert not world.events()
    world.complete()
    world.settle()
    ((kind, data),) = world.events()
    assert kind == "AgentCacheSaved"
    assert data["blocks"] == [name.hex() for name in NAMES]
    assert (data["job"], data["tokens"], data["tail"]) == (JOB, 1024, None)
    (saved,) = world.log.load(StreamName("agent-alice"))
    last = world.log.load(StreamName(JOB))[-1]
    assert saved.causation_id == last.event_id
    assert saved.correlation_id == last.correlation_id
    assert saved.position > last.position


def test_context_without_agent_or_blocks_is_not_recorded(world: World) -> None:
    world.submit(agent=None)
    world.complete()
    world.recorder.record(began(restored=300))
    world.recorder.record(kept())
    world.submit(JobId("job-2"))
    world.complete(JobId("job-2"))
    world.recorder.record(kept((), JobId("job-2")))
    world.recorder.record(kept(job=JobId("job-unknown")))
    world.settle()
    assert not world.events()


@pytest.mark.parametrize(("disk", "source"), [(0, "ram"), (256, "disk")])
def test_restore_names_its_source(world: World, disk: int, source: str) -> None:
    world.submit()
    world.recorder.record(began(restored=768, disk=disk))
    world.settle()
    ((kind, data),) = world.events()
    assert kind == "AgentCacheRestored"
    assert (data["source"], data["tokens"], data["disk_tokens"]) == (source, 768, disk)


def saved_before(world: World) -> None:
    world.submit()
    world.complete()
    world.recorder.record(kept())
    world.settle()
    world.submit(JobId("job-2"))


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        ({"restored": 1024}, None),
        ({"names": NAMES[:2], "restored": 512}, None),
        ({"restored": 512}, ("gone", 512, 512)),
        (
            {"names": (*NAMES[:2], BlockHash(b"x" * 32)), "restored": 512},
            ("diverged", 512, 512),
        ),
        (
            {"names": (*NAMES[:2], BlockHash(b"x" * 32)), "restored": 600, "diverged_at": 600},
            ("diverged", 600, 424),
        ),
        ({"fingerprint": "sha256:" + "cd" * 32}, ("model_changed", 0, 1024)),
        ({"restored": 1010, "diverged_at": 1015}, None),
    ],
)
def test_miss_names_place_and_reason(
    world: World, report: dict[str, Any], expected: tuple[str, int, int] | None
) -> None:
    saved_before(world)
    world.recorder.record(began(**report, job=JobId("job-2")))
    world.settle()
    missed = [data for kind, data in world.events() if kind == "AgentCacheMissed"]
    if expected is None:
        assert not missed
    else:
        ((data),) = missed
        assert (data["reason"], data["at_token"], data["missed_tokens"]) == expected


def test_another_process_knows_what_was_saved(world: World) -> None:
    saved_before(world)
    with CacheEventRecorder(
        WorkerId("worker-2"), log=world.log, ids=SequentialIds(), clock=SystemClock()
    ) as later:
        later._ids = world.recorder._ids  # ids are fresh in every process
        later.record(began(restored=512, job=JobId("job-2")))
        assert later.flush(WAIT_S)
    assert [kind for kind, _ in world.events()][-1] == "AgentCacheMissed"


def test_store_events_go_to_the_workers_stream(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder_module, "EVICTIONS_S", 0.01)
    world.recorder.record(
        CacheBlockRejected(
            worker=WORKER,
            block=NAMES[0].hex(),
            reason=RejectReason.CHECKSUM.value,
            detail="bad",
            size_bytes=9,
        )
    )
    world.recorder.record(
        CachePersistencePaused(worker=WORKER, error="ENOSPC", message="full", retry_s=5)
    )
    world.recorder.record(CachePersistenceResumed(worker=WORKER, paused_s=7.25, dropped=3))
    for _ in range(3):
        world.recorder.record(
            CacheBlocksEvicted(worker=WORKER, tier="disk", blocks=2, size_bytes=10)
        )
    world.recorder.record_evicted("ram", 1, 5)
    world.settle()
    events = world.events(WORKER)
    assert [kind for kind, _ in events[:3]] == [
        "CacheBlockRejected",
        "CachePersistencePaused",
        "CachePersistenceResumed",
    ]
    assert events[0][1]["block"] == NAMES[0].hex()
    assert events[0][1]["reason"] == "checksum"
    evicted = {data["tier"]: 0 for _, data in events[3:]}
    for _, data in events[3:]:
        evicted[data["tier"]] += data["blocks"]
    assert evicted == {"disk": 6, "ram": 1}


def test_append_is_retried_while_the_log_is_unavailable(world: World) -> None:
    world.submit()
    world.log.unavailable = True
    world.recorder.record(began(restored=300))
    assert not world.recorder.flush(0.02)
    world.log.unavailable = False
    world.settle()
    assert len(world.events()) == 1


def test_exit_does_not_wait_for_an_unavailable_log(world: World) -> None:
    world.submit()
    world.log.unavailable = True
    other = CacheEventRecorder(WORKER, log=world.log, ids=SequentialIds(), clock=SystemClock())
    with other:
        other.record(began(restored=300))
    assert other.flush(0)
    assert not world.events()
