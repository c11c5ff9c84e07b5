"""What is recorded: every kind of write of the service, and after each what was promised.

``python -m bench.power_cut.work ROOT JOURNAL`` works in a data directory below ``ROOT``. The
adapters and commands are the service's own; jobs get their events without a model.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from typer.testing import CliRunner

from bench.power_cut.journal import mark
from domain.events.cache import AgentCacheSaved
from domain.values import JobId, StreamName, digest_of, rfc3339
from ops.blockstore.blocks import NewBlock
from ops.blockstore.disk import Disk
from ops.blockstore.store import BlockStore
from ops.cli.main import build_app
from ops.clock import RandomIds, SystemClock
from ops.log.admin.archive import archive_log
from ops.log.admin.backup import back_up, restore
from ops.log.admin.checkpoint_files import CheckpointFiles, sign_log, sign_restore
from ops.log.database import reader_engine
from ops.log.migrate import upgrade
from ops.log.sql_event_log import SqlEventLog, open_log
from ops.log.sqlite_driver import driver_module
from ops.settings.service import WebhookSettings
from ops.webhooks.sender import webhook_secret
from tests.support.builders.blocks import FINGERPRINT, make_chain
from tests.support.builders.job_events import completed, draft, started, submitted

#: Names below the root of a recording.
DATA_DIR: Final = "data"
BACKUP: Final = "copy.sqlite3"
#: Stands in every text of the agent that is erased, and in what the broker keeps of it.
SECRET: Final = "the-secret-of-mallory"  # noqa: S105 - of a test
ERASED_AGENT: Final = "mallory"
#: Bytes of a prompt; a few hundred of them fill the write-ahead log up to its checkpoints.
_PROMPT_BYTES: Final = 20_000
_AT_ONCE: Final = 4
_BLOCK_BYTES: Final = 30_000
_BLOCK_BUDGET_BYTES: Final = 16 * _BLOCK_BYTES


class Work:
    """One data directory, and the marks of its promises.

    Args:
        root: Of the recording; holds the data directory and the backup.
        journal: Receives the marks.
    """

    def __init__(self, root: Path, journal: Path) -> None:
        self._root = root
        self._data = root / DATA_DIR
        self._url = f"sqlite:///{self._data / 'events.sqlite3'}"
        self._mark = partial(mark, journal)
        self._clock = SystemClock()
        self._jobs = 0
        self._chains = 0

    def run(self) -> None:
        """Write everything that the service writes, and change it in every way."""
        upgrade(self._url)
        self._webhook_key()
        self._some_jobs(12)
        self._sign()
        self._blocks()
        self._some_jobs(80)
        self._sign()
        self._back_up()
        self._some_jobs(20)
        self._archive()
        self._some_jobs(40)
        self._sign()
        self._blocks()
        self._erase()
        self._some_jobs(80)
        self._sign()
        self._restore()
        self._some_jobs(40)
        self._sign()

    def _some_jobs(self, count: int, agent: str | None = None) -> None:
        """Accept and end jobs, several at once; every fourth stays open."""
        numbers = range(self._jobs, self._jobs + count)
        self._jobs += count
        with open_log(self._url, clock=self._clock) as log, ThreadPoolExecutor(_AT_ONCE) as threads:
            for done in threads.map(partial(self._job, log, agent), numbers):
                assert done is None

    def _job(self, log: SqlEventLog, agent: str | None, number: int) -> None:
        job = StreamName(f"job-{number}")
        about = SECRET if agent == ERASED_AGENT else "nothing secret"
        prompt = f"prompt {number} {about} ".ljust(_PROMPT_BYTES, chr(97 + number % 26))
        accepted = replace(submitted(agent=agent), request=digest_of(prompt.encode()))
        log.append(
            job,
            [draft(accepted)],
            expected_version=0,
            payloads={accepted.request: prompt.encode()},
        )
        self._mark(accepted=job, agent=agent, prompt=accepted.request)
        log.append(job, [draft(started())], expected_version=1)
        if number % 4 == 3:
            return
        answer = f"answer {number} {about}".encode()
        end = replace(completed(), output=digest_of(answer))
        log.append(job, [draft(end)], expected_version=2, payloads={end.output: answer})
        self._mark(ended=job, agent=agent, answer=end.output)

    def _webhook_key(self) -> None:
        self._mark(webhook_key=webhook_secret(WebhookSettings(), self._data))

    def _sign(self) -> None:
        engine = reader_engine(self._url)
        try:
            signed = sign_log(engine, CheckpointFiles.of(self._data), clock=self._clock)
        finally:
            engine.dispose()
        self._mark(signed=signed.position, hash=signed.hash)

    def _blocks(self) -> None:
        """Store three contexts; the budget holds about two, so the first is evicted."""
        store = self._store()
        for _ in range(3):
            self._put(store, self._next_chain())

    def _put(self, store: BlockStore, chain: list[NewBlock]) -> None:
        for at in range(0, len(chain), 3):
            group = chain[at : at + 3]
            before = {block.hash for block in store.blocks()}
            # What is evicted is no longer promised, from before the eviction.
            self._mark(may_evict=[name.hex() for name in before])
            store.put_many(group)
            self._mark(blocks=[block.hash.hex() for block in store.blocks()])

    def _store(self) -> BlockStore:
        store = BlockStore(
            self._data / "cache", budget_bytes=_BLOCK_BUDGET_BYTES, clock=self._clock, disk=Disk()
        )
        store.scan()
        return store

    def _next_chain(self) -> list[NewBlock]:
        self._chains += 1
        return make_chain(self._chains, 7, size_bytes=_BLOCK_BYTES)

    def _back_up(self) -> None:
        head = back_up(self._url, self._root / BACKUP)
        self._mark(backup=head.position, hash=head.hash)

    def _archive(self) -> None:
        now = rfc3339(self._clock.now())
        done = archive_log(self._url, before=now, clock=self._clock, ids=RandomIds())
        assert done.archive is not None
        self._mark(archive=done.archive.file)

    def _erase(self) -> None:
        """Give an agent jobs, a context and stream items, and erase them by the command."""
        job = JobId(f"job-{self._jobs}")
        self._some_jobs(12, ERASED_AGENT)
        chain = self._next_chain()
        self._put(self._store(), chain)
        names = tuple(block.hash.hex() for block in chain)
        saved = AgentCacheSaved(job=job, fingerprint=FINGERPRINT, blocks=names, tail=None, tokens=9)
        with open_log(self._url, clock=self._clock) as log:
            log.append(StreamName(f"agent-{ERASED_AGENT}"), [draft(saved)], expected_version=0)
        self._broker_files()
        self._mark(erasing=names)
        arguments = ["log", "erase", "--agent", ERASED_AGENT, "--yes"]
        # As long as another program has the log open, SQLite keeps its write-ahead log.
        with closing(driver_module().connect(str(self._data / "events.sqlite3"))) as other:
            other.execute("SELECT count(*) FROM events").fetchall()
            self._some_jobs(1, ERASED_AGENT)
            done = CliRunner().invoke(
                build_app("log"),
                [*arguments, "--data-dir", str(self._data)],
                catch_exceptions=False,
            )
        assert done.exit_code == 0, done.output
        self._mark(erased=ERASED_AGENT)

    def _broker_files(self) -> None:
        """Write what a stopped broker leaves: synced files that hold the texts."""
        file = self._data / "broker" / "appendonlydir" / "appendonly.aof.1.incr.aof"
        Disk().write_group([(file, [SECRET.encode() * 10])], time_ns=0)

    def _restore(self) -> None:
        self._mark(restoring=True)
        done = restore(self._url, self._root / BACKUP, kept_as="before")
        engine = reader_engine(self._url)
        try:
            sign_restore(engine, CheckpointFiles.of(self._data), clock=self._clock)
        finally:
            engine.dispose()
        self._mark(restored=done.head.position, hash=done.head.hash)


if __name__ == "__main__":
    Work(Path(sys.argv[1]), Path(sys.argv[2])).run()
