"""``python -m worker.engine.grammar.probe_process``: compiles grammars under limits, as a trial.

It reads a vocabulary from its socket, and then one descriptor for each grammar. A fork of its own
compiles each grammar and ends at a limit, or when the other end of the descriptor is closed.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Final

from ops.adapters.data_dir.permissions import create_private_files
from ops.exit_codes import ExitCode, end_process
from worker.engine.grammar.grammar_probe import (
    BEGUN,
    CPU_S_MAX,
    GRAMMAR_BYTES_MAX,
    IDLE_S,
    receive,
)
from worker.engine.grammar.guidance import trial_of

#: Seconds between two looks at the memory and at the client.
_LOOK_S: Final = 0.01
#: The decoding of other answers comes first.
_NICE: Final = 10
_SMALL: Final = 'start: "a"'
#: Bytes in the unit of ``ru_maxrss``.
_RSS_UNIT: Final = 1 if sys.platform == "darwin" else 1024


def main() -> int:
    """Serve until the socket closes or is idle; return the exit code."""
    create_private_files()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(_NICE)
    control = socket.socket(fileno=int(sys.argv[1]))
    setup = json.loads(receive(control))
    trial = trial_of(setup["tokenizer"], setup["end_ids"])
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
            _examine(socket.socket(fileno=descriptors[0]), trial)
        os.close(descriptors[0])


def _examine(client: socket.socket, trial: Callable[[str], str | None]) -> None:
    """Compile one grammar, send the verdict and end this fork."""
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S_MAX, CPU_S_MAX))
    client.sendall(BEGUN)
    grammar = receive(client).decode()
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
    client.sendall(json.dumps(verdict).encode())
    end_process(int(ExitCode.OK))


def _watch(client: socket.socket, before: int) -> None:
    """End this fork when it takes too much memory, or when its client has left."""
    while _rss_max() - before <= GRAMMAR_BYTES_MAX:
        client.settimeout(_LOOK_S)
        try:
            if not client.recv(1):
                break
        except TimeoutError:
            continue
    os._exit(int(ExitCode.OK))


def _rss_max() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RSS_UNIT


if __name__ == "__main__":
    end_process(main())
