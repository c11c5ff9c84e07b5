"""Proves in another process that a grammar compiles within limits, before the worker compiles it.

The library has no limit of its own for remainders and intersections: a grammar of 300 bytes can
take gigabytes, and its compilation cannot be interrupted. A compiled grammar cannot leave its
process either. Therefore a fork compiles each grammar first, and the worker only what it proves.

``python -m worker.engine.grammar.grammar_probe`` is that process. It reads a vocabulary from its
socket, and then one descriptor for each grammar. A fork of its own compiles each grammar and ends
at a limit, or when the other end of the descriptor is closed.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Final

from llguidance import LLMatcher, LLTokenizer

from domain.errors import EngineFailure, GenerationCancelled
from ops.data_dir.permissions import create_private_files
from ops.exit_codes import ExitCode, end_process

#: CPU time in which a grammar must compile, in seconds.
CPU_S_MAX: Final = 2
#: Most memory that a grammar may take.
GRAMMAR_BYTES_MAX: Final = 64 << 20
#: Seconds without a grammar after which the process ends; the next grammar starts another.
IDLE_S: Final = 300.0
_MODULE: Final = "worker.engine.grammar.grammar_probe"
#: What a fork sends before it compiles.
BEGUN: Final = b"+"
#: Seconds between two looks at the cancellation of a request.
_LOOK_S: Final = 0.05
_TOO_LARGE: Final = f"it takes more than {CPU_S_MAX} s or {GRAMMAR_BYTES_MAX >> 20} MB to compile"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialVerdict:
    """What the trial of a grammar has found.

    Attributes:
        refusal: Why the worker must not compile it, ``None`` if it may.
    """

    refusal: str | None
    size_bytes: int = 0
    cpu_s: float = float(CPU_S_MAX)


class GrammarProbe:
    """Has grammars compiled in a process of its own, which starts with the first grammar.

    Safe to use from any thread; grammars of several threads are compiled at the same time.
    """

    def __init__(self, tokenizer_json: str, end_ids: Collection[int]) -> None:
        self._setup = json.dumps({"tokenizer": tokenizer_json, "end_ids": sorted(end_ids)}).encode()
        self._lock = threading.Lock()
        self._control: socket.socket | None = None
        self._end: Callable[[], object] = lambda: None

    def examine(self, grammar: str, is_cancelled: Callable[[], bool]) -> TrialVerdict:
        """Return whether a grammar compiles within the limits.

        Args:
            grammar: In the library's Lark dialect.
            is_cancelled: Whether the request is no longer wanted; asked again and again.

        Raises:
            GenerationCancelled: The request was cancelled; the compilation ends.
            EngineFailure: The process cannot be started, or was ended.
        """
        replies: list[bytes] = []
        with self._begun() as client, suppress(EOFError, OSError):
            client.send_bytes(grammar.encode())
            while True:
                while not client.poll(_LOOK_S):
                    if is_cancelled():
                        raise GenerationCancelled("cancelled while its grammar was compiled")
                replies.append(client.recv_bytes())
        if not replies:
            raise EngineFailure("the process that compiles grammars has ended")
        if replies == [BEGUN]:
            return TrialVerdict(refusal=_TOO_LARGE, size_bytes=GRAMMAR_BYTES_MAX)
        return TrialVerdict(**json.loads(replies[-1]))

    def _begun(self) -> Connection:
        """Return the connection to a new fork; one that ended for idleness is started again."""
        ours, theirs = socket.socketpair()
        with theirs, self._lock:
            try:
                if self._control is not None:
                    socket.send_fds(self._control, [BEGUN], [theirs.fileno()])
                    return Connection(ours.detach())
            except OSError:
                pass
            self._end()
            self._control = self._started()
            socket.send_fds(self._control, [BEGUN], [theirs.fileno()])
        return Connection(ours.detach())

    def _started(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-P", "-m", _MODULE, str(theirs.fileno())]
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()]
            )
        self._end = weakref.finalize(self, _end, ours, process)
        with Connection(os.dup(ours.fileno())) as setup:
            setup.send_bytes(self._setup)
        return ours


def _end(control: socket.socket, process: subprocess.Popen[bytes]) -> None:
    control.close()
    process.kill()
    process.wait()


# --- the process -----------------------------------------------------------------------------

#: Log level at which the library writes nothing to stderr.
_SILENT: Final = 0
#: Seconds between two looks at the memory and at the client.
_WATCH_S: Final = 0.01
#: The decoding of other answers comes first.
_NICE: Final = 10
_SMALL: Final = 'start: "a"'
#: Bytes in the unit of ``ru_maxrss``.
_RSS_UNIT: Final = 1 if sys.platform == "darwin" else 1024


def main() -> int:
    """Serve a ``GrammarProbe`` until the socket closes or is idle; return the exit code."""
    create_private_files()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(_NICE)
    control = socket.socket(fileno=int(sys.argv[1]))
    with Connection(os.dup(control.fileno())) as connection:
        setup = json.loads(connection.recv_bytes())
    trial = _trial_of(setup["tokenizer"], setup["end_ids"])
    control.settimeout(IDLE_S)
    while True:
        try:
            _, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        except TimeoutError:
            return int(ExitCode.OK)
        if not descriptors:
            return int(ExitCode.OK)
        if os.fork() == 0:
            control.close()
            _examine(Connection(descriptors[0]), trial)
        os.close(descriptors[0])


def _examine(client: Connection, trial: Callable[[str], str | None]) -> None:
    """Compile one grammar, send the verdict and end this fork."""
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S_MAX, CPU_S_MAX))
    client.send_bytes(BEGUN)
    grammar = client.recv_bytes().decode()
    # The first compilation maps pages of the library that later ones share.
    trial(_SMALL)
    before = _rss_max()
    threading.Thread(target=_watch, args=(client, before), daemon=True).start()
    refusal = trial(grammar)
    verdict = {
        "refusal": refusal,
        "size_bytes": _rss_max() - before,
        "cpu_s": time.process_time(),
    }
    client.send_bytes(json.dumps(verdict).encode())
    end_process(int(ExitCode.OK))


def _watch(client: Connection, before: int) -> None:
    """End this fork when it takes too much memory, or when its client has left."""
    while _rss_max() - before <= GRAMMAR_BYTES_MAX:
        if client.poll(_WATCH_S):
            break
    os._exit(int(ExitCode.OK))


def _rss_max() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RSS_UNIT


def _trial_of(tokenizer_json: str, end_ids: Collection[int]) -> Callable[[str], str | None]:
    """Return what compiles a grammar for a vocabulary and returns the library's error, if any."""
    vocabulary = LLTokenizer(tokenizer_json, eos_token=sorted(end_ids))

    def trial(grammar: str) -> str | None:
        built = compiled(vocabulary, grammar)
        if not built.is_error():
            # Some grammars, such as a schema that only refers to itself, fail at the first mask.
            built.compute_bitmask()
        return built.get_error() if built.is_error() else None

    return trial


def compiled(vocabulary: LLTokenizer, grammar: str) -> LLMatcher:
    """Return a grammar that the library has compiled, or its error."""
    return LLMatcher(vocabulary, LLMatcher.grammar_from_lark(grammar), log_level=_SILENT)


if __name__ == "__main__":
    end_process(main())
