"""Proves in another process that a grammar compiles within limits, before the worker compiles it.

The library has no limit of its own for remainders and intersections: a grammar of 300 bytes can
take gigabytes, and its compilation cannot be interrupted. A compiled grammar cannot leave its
process either. Therefore a fork compiles each grammar first, and the worker only what it proves.
"""

from __future__ import annotations

import json
import select
import socket
import struct
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from domain.errors import EngineFailure, GenerationCancelled

#: CPU time in which a grammar must compile, in seconds.
CPU_S_MAX: Final = 2
#: Most memory that a grammar may take.
GRAMMAR_BYTES_MAX: Final = 64 << 20
#: Seconds without a grammar after which the process ends; the next grammar starts another.
IDLE_S: Final = 300.0
#: What a fork sends before it compiles.
BEGUN: Final = b"+"
#: Seconds between two looks at the cancellation of a request.
_LOOK_S: Final = 0.05
_LENGTH: Final = struct.Struct(">Q")
_CHUNK_BYTES: Final = 1 << 16
_TOO_LARGE: Final = f"it takes more than {CPU_S_MAX} s or {GRAMMAR_BYTES_MAX >> 20} MB to compile"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialVerdict:
    """What the trial of a grammar has found.

    Attributes:
        refusal: Why the worker must not compile it, ``None`` if it may.
        size_bytes: The memory that it took.
        cpu_s: The CPU time that it took.
    """

    refusal: str | None
    size_bytes: int = 0
    cpu_s: float = float(CPU_S_MAX)


class GrammarProbe:
    """Has grammars compiled in a process of its own, which starts with the first grammar.

    Safe to use from any thread; grammars of several threads are compiled at the same time.

    Args:
        tokenizer_json: The tokenizer, as the ``tokenizers`` library serialises it.
        end_ids: Tokens that end a turn.
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
        with self._begun() as client:
            client.sendall(_sized(grammar.encode()))
            reply = b""
            while True:
                while not select.select([client], [], [], _LOOK_S)[0]:
                    if is_cancelled():
                        raise GenerationCancelled("cancelled while its grammar was compiled")
                piece = _received(client)
                if not piece:
                    break
                reply += piece
        if not reply.startswith(BEGUN):
            raise EngineFailure("the process that compiles grammars has ended")
        if reply == BEGUN:
            return TrialVerdict(refusal=_TOO_LARGE, size_bytes=GRAMMAR_BYTES_MAX)
        return TrialVerdict(**json.loads(reply[len(BEGUN) :]))

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._end()
            self._control = None

    def _begun(self) -> socket.socket:
        """Return the connection to a new fork; one that ended for idleness is started again."""
        ours, theirs = socket.socketpair()
        with theirs, self._lock:
            try:
                if self._control is not None:
                    socket.send_fds(self._control, [BEGUN], [theirs.fileno()])
                    return ours
            except OSError:
                pass
            self._end()
            self._control = self._started()
            socket.send_fds(self._control, [BEGUN], [theirs.fileno()])
        return ours

    def _started(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-P", "-m", _MODULE, str(theirs.fileno())]
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()]
            )
        self._end = weakref.finalize(self, _end, ours, process)
        ours.sendall(_sized(self._setup))
        return ours


def receive(connection: socket.socket) -> bytes:
    """Return the bytes of the next message."""
    (left,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
    return _exactly(connection, left)


_MODULE: Final = "worker.engine.grammar.probe_process"


def _sized(message: bytes) -> bytes:
    return _LENGTH.pack(len(message)) + message


def _exactly(connection: socket.socket, size: int) -> bytes:
    read = bytearray()
    while len(read) < size:
        piece = connection.recv(min(_CHUNK_BYTES, size - len(read)))
        if not piece:
            raise EOFError
        read += piece
    return bytes(read)


def _received(client: socket.socket) -> bytes:
    try:
        return client.recv(_CHUNK_BYTES)
    except ConnectionError:
        return b""


def _end(control: socket.socket, process: subprocess.Popen[bytes]) -> None:
    control.close()
    process.kill()
    process.wait()
