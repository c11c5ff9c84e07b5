"""What was promised up to a moment; opens what a power cut left, and checks every promise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.chaos.history import Violation
from bench.power_cut.work import BACKUP, DATA_DIR, SECRET
from domain.errors import SemanticError
from domain.log.checkpoints import required_hashes
from domain.values import Digest, JobId
from ops.blockstore.blocks import StoredBlock
from ops.blockstore.store import BlockStore
from ops.clock import SystemClock
from ops.log.admin.backup import verify_copy
from ops.log.admin.checkpoint_files import CheckpointFiles, sign_log
from ops.log.admin.verify import verify_whole_log
from ops.log.database import reader_engine
from ops.log.migrate import upgrade
from ops.log.projections.rebuild import ensure_projections
from ops.log.reader import LogReader
from ops.log.sql_event_log import SqlEventLog, open_log
from ops.settings.service import WebhookSettings
from ops.webhooks.sender import webhook_secret
from tests.support.builders.blocks import FINGERPRINT, make_chain


@dataclass(frozen=True, slots=True)
class Texts:
    """The digests of a job's texts that somebody was promised.

    Attributes:
        agent: Whose job it is, if it has an agent.
        prompt: Digest of its prompt.
        answer: Digest of its answer; ``None`` unless its end was seen.
    """

    agent: str | None
    prompt: str
    answer: str | None = None


@dataclass(slots=True)
class Promises:
    """The promises that hold at one moment.

    Attributes:
        jobs: Accepted jobs.
        webhook_key: The secret of the webhooks, once it was used.
        heads: Signed checkpoints: hash by position.
        blocks: Names of the stored blocks that nothing may have evicted.
        archives: Names of the archive files.
        backup: Head of the completed backup: position and hash.
        jobs_in_backup: The jobs that it holds.
        restoring: Whether a restore has begun that has not ended.
        erasing: Blocks of the agent whose erasure has begun.
        erased: The agents that were erased.
    """

    jobs: dict[str, Texts] = field(default_factory=dict)
    webhook_key: str | None = None
    heads: dict[int, str] = field(default_factory=dict)
    blocks: set[str] = field(default_factory=set)
    archives: list[str] = field(default_factory=list)
    backup: tuple[int, str] | None = None
    jobs_in_backup: dict[str, Texts] = field(default_factory=dict)
    restoring: bool = False
    erasing: tuple[str, ...] = ()
    erased: set[str] = field(default_factory=set)

    def add(self, mark: dict[str, Any]) -> None:
        """Take up one mark."""
        match mark:
            case {"accepted": job, "agent": agent, "prompt": prompt}:
                self.jobs[job] = Texts(agent, prompt)
            case {"ended": job, "agent": agent, "answer": answer}:
                self.jobs[job] = Texts(agent, self.jobs[job].prompt, answer)
            case {"webhook_key": key}:
                self.webhook_key = key
            case {"signed": position, "hash": hash_}:
                self.heads[position] = hash_
            case {"may_evict": names}:
                self.blocks -= set(names)
            case {"blocks": names}:
                self.blocks |= set(names)
            case _:
                self._add_of_operator(mark)

    def _add_of_operator(self, mark: dict[str, Any]) -> None:
        match mark:
            case {"archive": file}:
                self.archives.append(file)
            case {"erasing": names}:
                self.erasing = tuple(names)
                self.blocks -= set(names)
            case {"erased": agent}:
                self.erased.add(agent)
            case {"backup": position, "hash": hash_}:
                self.backup = (position, hash_)
                self.jobs_in_backup = dict(self.jobs)
            case {"restoring": True}:
                self.restoring = True
            case {"restored": position, "hash": hash_}:
                self.restoring = False
                self.jobs = dict(self.jobs_in_backup)
                self.archives.clear()
                self.heads = {at: old for at, old in self.heads.items() if at < position}
                self.heads[position] = hash_
            case _:
                raise ValueError(f"no such mark: {mark}")


#: Contexts that the recorded work may have stored.
_CHAINS_MAX: Final = 16


def check(root: Path, promises: Promises) -> tuple[Violation, ...]:
    """Return every broken promise of a rebuilt root directory; opening it may mend it."""
    violations = [*_check_files(root, promises)]
    data = root / DATA_DIR
    if not data.is_dir():
        if promises.webhook_key or promises.jobs:
            violations.append(Violation("files are there", str(data), "the directory is missing"))
        return tuple(violations)
    checks = (_check_log, _check_blocks, _check_webhook_key)
    for one in checks:
        try:
            violations += one(data, promises)
        except (SemanticError, OSError) as error:
            violations.append(
                Violation(one.__name__, str(data), f"{type(error).__name__}: {error}")
            )
    return tuple(violations)


def _check_files(root: Path, promises: Promises) -> Iterator[Violation]:
    """Check the bytes as they lie on the disk, before anything opens them."""
    if promises.erased:
        for path in sorted(root.rglob("*")):
            if path.is_file() and SECRET.encode() in path.read_bytes():
                name = str(path.relative_to(root))
                yield Violation("erased texts stay erased", name, "holds an erased text")
    backup = root / BACKUP
    if backup.exists():
        try:
            head = verify_copy(backup)
        except SemanticError as error:
            yield Violation("a copy is whole or absent", BACKUP, str(error))
        else:
            if promises.backup not in (None, (head.position, head.hash)):
                yield Violation("a copy is whole or absent", BACKUP, f"its head is {head}")
    elif promises.backup is not None:
        yield Violation("a completed backup is there", BACKUP, "is missing")


def _check_log(data: Path, promises: Promises) -> Iterator[Violation]:
    """Open the log as a start of the service does; verify it; look for what was promised."""
    url = f"sqlite:///{data / 'events.sqlite3'}"
    upgrade(url)
    ensure_projections(url)
    files = CheckpointFiles.of(data)
    signed = required_hashes(files.read())
    engine = reader_engine(url)
    try:
        last = LogReader(engine).head()
        is_restored = promises.restoring and (last.position, last.hash) == promises.backup
        if is_restored:
            # The restore is not signed yet; it is repeated then.
            signed = {at: hash_ for at, hash_ in signed.items() if at <= last.position}
        report = verify_whole_log(engine, url, signed_hashes=signed).archives
        if not is_restored:
            yield from _check_heads(signed, promises)
            sign_log(engine, files, clock=SystemClock())
    finally:
        engine.dispose()
    there = {file.name for file in (data / "archive").glob("*.jsonl.gz")}
    for file in {*report.missing, *promises.archives} - there:
        yield Violation("an archive is there", file, "is missing")
    with open_log(url, clock=SystemClock()) as log:
        for job, texts in (promises.jobs_in_backup if is_restored else promises.jobs).items():
            if texts.agent is None or not promises.erasing:
                yield from _check_job(log, JobId(job), texts)


def _check_heads(signed: dict[int, str], promises: Promises) -> Iterator[Violation]:
    for position, hash_ in promises.heads.items():
        if signed.get(position) != hash_:
            yield Violation("a signed head stays", str(position), f"is {signed.get(position)}")


def _check_job(log: SqlEventLog, job: JobId, texts: Texts) -> Iterator[Violation]:
    view = log.views.get(job)
    if view is None:
        yield Violation("every accepted job is there", job, "is not in the log")
        return
    for digest in filter(None, (view.submitted.request, view.output)):
        log.get(Digest(digest))  # raises where it is missing or another text
    if view.submitted.request != texts.prompt:
        yield Violation(
            "every accepted job is there", job, f"has the prompt {view.submitted.request}"
        )
    if texts.answer is not None and view.output != texts.answer:
        what = f"is {view.status} with the answer {view.output}"
        yield Violation("an end that was seen stays", job, what)


def _check_blocks(data: Path, promises: Promises) -> Iterator[Violation]:
    """A promised block is there; what is there has the content that was stored."""
    store = BlockStore(data / "cache", budget_bytes=1 << 30, clock=SystemClock())
    store.scan()
    written = {
        block.hash: block for start in range(1, _CHAINS_MAX) for block in make_chain(start, 7)
    }
    for info in store.blocks():
        found = store.get(info.hash, FINGERPRINT)
        name = info.hash.hex()
        if not isinstance(found, StoredBlock):
            yield Violation("a renamed block is whole", name, f"is {found}")
        elif tuple(found.token_ids) != tuple(written[info.hash].token_ids):
            yield Violation("a block read back is right", name, f"has tokens {found.token_ids}")
    there = {info.hash.hex() for info in store.blocks()}
    for name in sorted(promises.blocks - there):
        yield Violation("a stored block is there", name, "is missing")
    if promises.erased:
        for name in sorted(there & set(promises.erasing)):
            yield Violation("erased texts stay erased", name, "the block is there")


def _check_webhook_key(data: Path, promises: Promises) -> Iterator[Violation]:
    found = webhook_secret(WebhookSettings(), data)
    if promises.webhook_key not in (None, found):
        yield Violation("the key of the webhooks stays", "webhooks.key", "is another one")
