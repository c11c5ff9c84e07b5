"""A process that is killed at any step between a block and its manifest leaves nothing wrong."""

from __future__ import annotations

import os
from concurrent.futures import Future
from pathlib import Path

from domain.events.cache import AgentCacheSaved
from domain.kv.hashing import BlockHash
from domain.log.codec import decode_recorded
from domain.values import JobId, StreamName, WorkerId
from ops.blockstore.blocks import NewBlock, StoredBlock
from ops.blockstore.disk import Disk
from ops.blockstore.store import BlockStore
from ops.clock import RandomIds, SystemClock
from ops.log.sql_event_log import open_log
from tests.support.builders.blocks import FINGERPRINT, make_chain
from tests.support.builders.job_events import completed, draft, started, submitted
from tests.support.builders.log_files import new_log, verify
from tests.support.processes.killed import killed_at_every_step
from worker.cachestore.reports import ContextSaved, Manifest
from worker.cachestore.tier import DiskTier
from worker.recording.cache_event_recorder import CacheEventRecorder

WAIT_S = 60.0
#: Before and after each of these another state is on disk.
STEPS = ((os, "fsync"), (os, "utime"), (Path, "replace"))
OLD, NEW = JobId("job-old"), JobId("job-new")
STREAM = StreamName("agent-alice")
#: The new context goes on from the old one.
CHAIN = make_chain(1, 5)
OF = {OLD: CHAIN[:2], NEW: CHAIN}


def save(url: str, root: Path, job: JobId) -> None:
    """Do what a worker does when a job of an agent ends, up to its manifest."""
    clock = SystemClock()
    with open_log(url, clock=clock) as log:
        log.append(StreamName(job), [draft(submitted(agent="alice"))], expected_version=0)
        log.append(StreamName(job), [draft(started())], expected_version=1)
        with CacheEventRecorder(
            WorkerId("worker-1"), log=log, ids=RandomIds(), clock=clock
        ) as recorder:
            tier = DiskTier(_store(root), clock=clock)
            tier.start()
            assert tier.wait_scanned(WAIT_S)
            blocks = OF[job]
            for block in blocks:
                assert tier.write(block) is not None
            log.append(StreamName(job), [draft(completed())], expected_version=2)
            sealed_manifest = tier.sealed(_manifest(blocks))
            sealed_manifest.add_done_callback(lambda sealed: _record_sealed(recorder, job, sealed))
            assert tier.flush(WAIT_S)
            assert recorder.flush(WAIT_S)
            assert tier.close(WAIT_S)


def test_killed_at_any_step_leaves_the_old_or_the_new_manifest_and_both_are_right(
    tmp_path: Path,
) -> None:
    url, root = new_log(tmp_path), tmp_path / "store"
    save(url, root, OLD)
    old = _last_saved(url)
    clean = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    seen = set()
    deaths = 0
    for _ in killed_at_every_step(lambda: save(url, root, NEW), STEPS):
        deaths += 1
        verify(url)
        last = _last_saved(url)
        seen.add(last.job)
        assert last == old or last.job == NEW
        assert [name.hex() for name in _whole(root, last)] == list(last.blocks)
        _put_back(tmp_path, clean)
    assert deaths > 10
    assert OLD in seen
    assert _last_saved(url).job == NEW
    assert len(_whole(root, _last_saved(url))) == len(CHAIN)


def _store(root: Path) -> BlockStore:
    return BlockStore(root, budget_bytes=1 << 20, clock=SystemClock(), disk=Disk())


def _manifest(blocks: list[NewBlock]) -> Manifest:
    return Manifest(fingerprint=FINGERPRINT, blocks=tuple(block.hash for block in blocks))


def _record_sealed(recorder: CacheEventRecorder, job: JobId, sealed: Future[Manifest]) -> None:
    manifest = sealed.result()
    recorder.record(ContextSaved(label=job, manifest=manifest, tokens=2 * len(manifest.blocks)))


def _last_saved(url: str) -> AgentCacheSaved:
    with open_log(url, clock=SystemClock()) as log:
        recorded = log.load(STREAM)[-1]
    event = decode_recorded(recorded)
    assert isinstance(event, AgentCacheSaved)
    return event


def _whole(root: Path, saved: AgentCacheSaved) -> list[BlockHash]:
    """Return the blocks of a manifest that are on disk, every byte as it was written."""
    store = _store(root)
    store.scan()
    names = [BlockHash(bytes.fromhex(digits)) for digits in saved.blocks]
    return [name for name in names if isinstance(store.get(name, FINGERPRINT), StoredBlock)]


def _put_back(directory: Path, clean: dict[Path, bytes]) -> None:
    for path in directory.rglob("*"):
        if path.is_file() and path not in clean:
            path.unlink()
    for path, content in clean.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
