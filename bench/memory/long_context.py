"""The next turn of a long context: from memory, and from the disk after a restart."""

from __future__ import annotations

import hashlib
import os
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from bench.memory.agents import Agent, Workload
from bench.memory.engine import Answered, EngineOptions, MemoryEngine
from bench.memory.long_network import long_network
from bench.memory.rotation import UNLIMITED_BYTES
from domain.kv.spec import BLOCK_TOKENS
from ops.setting_groups.service import EngineSettings

#: Conversations that decode beside a restore.
STREAMS = 2
#: Tokens of the streams before the restore begins.
WARM_TOKENS = 40
_STREAM_TOKENS = 1 << 14
_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class LongTurn:
    """A turn of the long context.

    Attributes:
        prompt_tokens: Tokens of its prompt.
        restored_tokens: Of these, restored from memory or disk.
        disk_tokens: Of these, read from the disk.
        first_token_s: Seconds from the request to the first token.
        insert_s: Seconds that the engine thread spent on the join.
        restore_s: Seconds for reading and restoring, as the engine reports them.
    """

    prompt_tokens: int
    restored_tokens: int
    disk_tokens: int
    first_token_s: float
    insert_s: float
    restore_s: float


@dataclass(frozen=True, slots=True)
class BusyTurn:
    """A turn beside streams that decode.

    Attributes:
        turn: The turn of the long context.
        gap_ms: Longest time between two tokens of a stream, of which the later one came before the
            restore ended, in milliseconds.
        gap_after_ms: The longest of later ones, up to the turn's first token. It has the first pass
            of the long row, which reads all keys and values.
        gap_before_ms: The same before the turn.
    """

    turn: LongTurn
    gap_ms: float
    gap_after_ms: float
    gap_before_ms: float


def turns_in_memory(workload: Workload, directory: Path) -> list[LongTurn]:
    """Compute the context, and take the next turns from memory; all of it is on disk afterwards."""
    with _started(directory) as engine:
        agent = Agent(0, workload)
        turns = []
        for _ in range(workload.turns):
            answered = engine.answer(agent.request())
            agent.record(answered.outcome.token_ids)
            turns.append(_turn(engine, answered))
        engine.flushed()
        return turns


def turn_from_disk(workload: Workload, directory: Path) -> LongTurn:
    """Take the first turn again, in a process that has nothing in memory."""
    with _started(directory) as engine:
        return _turn(engine, engine.answer(Agent(0, workload).request()))


def turn_beside_streams(workload: Workload, directory: Path) -> BusyTurn:
    """Do the same as ``turn_from_disk`` while other conversations decode."""
    with _started(directory) as engine:
        streams = []
        for number in range(1, STREAMS + 1):
            short = Workload(agents=1, system=16, task=200, answer=_STREAM_TOKENS)
            streams.append(engine.submit(Agent(number, short).request()))
        names = [name for name, _ in streams]
        times = engine.tokens.times
        with engine.tokens.changed:
            engine.tokens.changed.wait_for(
                lambda: all(len(times[name]) > WARM_TOKENS for name in names)
            )
        asked_s = time.perf_counter()
        answered = engine.answer(Agent(0, workload).request())
        first_s = asked_s + answered.first_token_s
        for _, handle in streams:
            handle.cancel()
        for _, handle in streams:
            handle.wait(None)
        turn = _turn(engine, answered)
        restored_s = asked_s + turn.restore_s

        until = {name: [at for at in times[name] if at <= restored_s] for name in names}
        return BusyTurn(
            turn,
            max(_longest_gap_ms(until[name], asked_s, restored_s) for name in names),
            max(_longest_gap_ms(times[name], restored_s, first_s) for name in names),
            max(_longest_gap_ms(times[name][WARM_TOKENS // 2 :], 0, asked_s) for name in names),
        )


def read_plain(directory: Path) -> tuple[int, float]:
    """Read and hash all files of a directory one after another; return bytes and seconds.

    The page cache is dropped before.
    """
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    drop_page_cache(directory)
    buffer, size = bytearray(_READ_BYTES), 0
    started_s = time.perf_counter()
    for path in files:
        digest = hashlib.sha256()
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                digest.update(memoryview(buffer)[:count])
                size += count
        digest.digest()
    return size, time.perf_counter() - started_s


def drop_page_cache(directory: Path) -> None:
    """Drop the pages of all files of a directory, where the system can."""
    if not hasattr(os, "posix_fadvise"):
        return
    for path in directory.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def _started(directory: Path) -> MemoryEngine:
    settings = EngineSettings()
    options = EngineOptions(
        store=directory,
        budget_bytes=UNLIMITED_BYTES,
        block_tokens=BLOCK_TOKENS,
        prefill_step_tokens=settings.prefill_step_tokens,
        gap_max_ms=settings.gap_max_ms,
    )
    return MemoryEngine(long_network, options)


def _turn(engine: MemoryEngine, answered: Answered) -> LongTurn:
    start = answered.starts[0]
    return LongTurn(
        prompt_tokens=start.prompt_tokens,
        restored_tokens=start.restored_tokens,
        disk_tokens=start.disk_tokens,
        first_token_s=answered.first_token_s,
        insert_s=engine.memory.insert_s[-1],
        restore_s=start.took_ms / 1000,
    )


def _longest_gap_ms(times: list[float], since_s: float, until_s: float) -> float:
    """Return the longest gap that ended after ``since_s`` and began before ``until_s``."""
    pairs = pairwise(times)
    return 1000 * max(
        (later - earlier for earlier, later in pairs if later > since_s and earlier < until_s),
        default=0.0,
    )
