"""Runs services whose processes have their imports already: two thirds of what a start costs.

A process of the session has imported what the parts of a service import; the supervisor of each
service is a fork of it, and each part a fork of a second one, the nursery of that service. All else
is what ``semantic serve`` does: the same code in processes, sessions and pipes of their own.

Planted constants and faults belong to the import of our modules. A service with them imports these
itself, once for all of its parts, and has only the libraries from the process of the session.

Only the tests of the day set ``BY_DAY``: by night, and in benchmarks, each process is a program of
its own. So it is by day in tests of the start itself, and of what a process maps, is called or has
in its environment, and where libraries have settings of their own.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import gc
import importlib
import json
import os
import queue
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any, Literal

from tests.support.processes.fork_server import (
    ForkedProcess,
    ForkedProcesses,
    ended_children,
    next_request,
)

#: Environment variable of test runs whose services are prepared.
BY_DAY = "TESTS_PREPARED_SERVICES"
#: What a command starts: a supervisor, a part on its own, or what ends by itself.
Kind = Literal["service", "part", "command"]
#: Variables of a service that no import reads; ``PYTHONPATH`` has only what tests plant.
_READ_LATE = ("SEMANTIC_", "SCRIPT_DIR", "PYTHONPATH", "PLANTED_")
_OURS = ("api", "domain", "migrations", "ops", "worker")
_LIBRARIES = (
    *(
        "alembic.command",
        "dramatiq.brokers.redis",
        "httpx",
        "jinja2",
        "llguidance",
        "llguidance.hf",
    ),
    *("mlx.core", "mlx.nn", "numpy.typing", "opentelemetry.trace", "prometheus_client", "psutil"),
    *("pydantic_settings", "redis.asyncio", "rich.console", "rich.progress", "safetensors"),
    *("sqlalchemy", "sqlalchemy.dialects.sqlite", "sqlmodel", "standardwebhooks", "structlog"),
    *("typer", "uuid", "zoneinfo"),
)
#: What the parts and their supervisor import.
_PREPARED = (
    *("worker.process", "worker.control.worker_drain", "worker.engine.ports", "worker.composition"),
    *("api.framework.composition", "ops.cli.service.serve", "ops.supervisor.serve"),
    *("ops.supervisor.checkpoint_signer", "ops.broker.private_redis", "ops.log.migrate"),
)
#: Numbers of mallopt(3) of the variables that glibc reads only when a program starts.
_MALLOPT = {
    "MALLOC_TRIM_THRESHOLD_": -1,
    "MALLOC_TOP_PAD_": -2,
    "MALLOC_MMAP_THRESHOLD_": -3,
    "MALLOC_ARENA_MAX": -8,
}
_MESSAGE_BYTES = 2**20
_FILES_MAX = 16
#: Above the descriptors that a part inherits by number.
_FREE_FROM = 500


def can_prepare(command: Sequence[str], own: Mapping[str, str]) -> bool:
    """Return whether a service can be a fork: all that it differs in is read after the imports.

    Args:
        command: The command, with its interpreter.
        own: Variables that it has beside those of the tests.
    """
    if BY_DAY not in os.environ or sys.platform != "linux":
        return False
    is_ours = command[:2] == (sys.executable, "-m")
    return is_ours and all(name.startswith(_READ_LATE) for name in own)


def start(
    command: Sequence[str], env: Mapping[str, str], log: Path, *, kind: Kind = "service"
) -> ForkedProcess:
    """Start ``python -m *command``."""
    server = _session("libraries" if _sites(env) else "all")
    return server.start(env, [log, log], command=list(command), kind=kind)


def run(words: Sequence[str], env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run ``semantic *words`` to its end."""
    with tempfile.TemporaryDirectory() as directory:
        files = [Path(directory, name) for name in ("stdout", "stderr")]
        command = ["ops.cli.main", *words]
        process = _session("all").start(env, files, command=command, kind="command")
        code = process.wait()
        return subprocess.CompletedProcess(command, code, *(file.read_text() for file in files))


@cache
def _session(imports: str) -> ForkedProcesses:
    env = {k: v for k, v in os.environ.items() if not k.startswith("SEMANTIC_") and k != "TMPDIR"}
    processes = ForkedProcesses(__name__, imports, env=env | {"PYTHONUNBUFFERED": "1"})
    atexit.register(processes.close)
    return processes


class _Part:
    """What the supervisor does with the ``Popen`` of a part."""

    def __init__(self, nursery: _Nursery, pid: int, stdout: IO[bytes]) -> None:
        self.pid, self.stdout = pid, stdout
        self._nursery = nursery

    def wait(self) -> int:
        return self._nursery.code_of(self.pid)

    def terminate(self) -> None:
        if self.pid not in self._nursery.codes:
            os.kill(self.pid, signal.SIGTERM)


class _Nursery:
    """The supervisor's side of its nursery. It takes the place of ``subprocess`` there."""

    DEVNULL, PIPE, STDOUT = subprocess.DEVNULL, subprocess.PIPE, subprocess.STDOUT
    Popen: Any

    def __init__(self, pid: int, requests: socket.socket) -> None:
        self.codes: dict[int, int] = {}
        self.Popen = self._start
        self._requests = requests
        self._started: queue.Queue[int] = queue.Queue()
        self._news = threading.Condition()
        threading.Thread(target=self._listen, daemon=True).start()
        atexit.register(self._close, pid)

    def _close(self, pid: int) -> None:
        """Wait for its end, so that the time of its processors counts as ours."""
        self._requests.shutdown(socket.SHUT_WR)
        os.waitpid(pid, 0)

    def _start(
        self, argv: Sequence[str], *, env: Mapping[str, str], pass_fds: Sequence[int], **_: object
    ) -> _Part:
        assert argv[0] == sys.executable
        output, theirs = os.pipe()
        request = {"argv": list(argv), "env": dict(env), "numbers": list(pass_fds)}
        socket.send_fds(self._requests, [json.dumps(request).encode()], [theirs, *pass_fds])
        os.close(theirs)
        return _Part(self, self._started.get(), os.fdopen(output, "rb"))

    def _listen(self) -> None:
        while message := self._requests.recv(_MESSAGE_BYTES):
            pid, code = json.loads(message)
            if code is None:
                self._started.put(pid)
                continue
            with self._news:
                self.codes[pid] = code
                self._news.notify_all()

    def code_of(self, pid: int) -> int:
        with self._news:
            self._news.wait_for(lambda: pid in self.codes)
        return self.codes[pid]


def _serve(codes: Path, imports: str) -> None:
    """Fork a process for each request; only the forked ones get past the server's loop."""
    _import_all() if imports == "all" else _import_libraries()
    gc.freeze()
    request = next_request(codes)
    if request is None:
        return
    os.setsid()
    module, *sys.argv[1:] = request["command"]
    sys.orig_argv[1:] = ["-m", module, *sys.argv[1:]]  # what a worker alone runs after a swap
    _plant()
    if request["kind"] == "part":
        vars(os)["execve"] = _go_on_as
    elif request["kind"] == "service":
        if imports != "all":
            _import_all()
            gc.freeze()
        module = _next_part() or module
    _run(module)


def _go_on_as(_: str, argv: Sequence[str], env: Mapping[str, str]) -> None:
    """Do what ``execve`` does for ``semantic serve --only``, in the same process."""
    os.environ.clear()
    os.environ.update(env)
    sys.orig_argv[:], sys.argv[:] = argv, argv[-1:]
    _run(argv[-1])


def _plant() -> None:
    """Run what Python runs at the start of a process with this ``PYTHONPATH``."""
    for site in _sites(os.environ):
        runpy.run_path(str(site))


def _sites(env: Mapping[str, str]) -> list[Path]:
    places = filter(None, env.get("PYTHONPATH", "").split(os.pathsep))
    return [site for place in places if (site := Path(place, "sitecustomize.py")).is_file()]


def _import_all() -> None:
    _import_tokenizers()
    for name in _PREPARED:
        importlib.import_module(name)


def _import_libraries() -> None:
    _import_tokenizers()
    for name in [name for name in sys.modules if name.partition(".")[0] in _OURS]:
        del sys.modules[name]
    for name in _LIBRARIES:
        importlib.import_module(name)


def _import_tokenizers() -> None:
    importlib.import_module("worker.main").import_tokenizers()


def _next_part() -> str | None:
    """Fork the nursery, and give the supervisor, which is this process, its side of it.

    Returns:
        The module of a part in its process; ``None`` in the supervisor.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if not (nursery := os.fork()):
        ours.close()
        return _nurse(theirs)
    theirs.close()
    children = importlib.import_module("ops.supervisor.child")
    vars(children)["subprocess"] = _Nursery(nursery, ours)
    return None


def _nurse(requests: socket.socket) -> str:
    """Fork a process for each request of the supervisor, and return its module in the forked one.

    The end of the supervisor ends the nursery; its parts go on, as they do without a nursery.
    """
    ended, ends = os.pipe()
    os.set_blocking(ends, False)
    signal.set_wakeup_fd(ends)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    while True:
        ready, _, _ = select.select([requests.fileno(), ended], [], [])
        if ended in ready:
            os.read(ended, _MESSAGE_BYTES)
            for pid, code in ended_children():
                _say(requests, pid, code)
        if requests.fileno() not in ready:
            continue
        message, files, _, _ = socket.recv_fds(requests, _MESSAGE_BYTES, _FILES_MAX)
        if not message:
            os._exit(0)
        child = os.fork()
        if not child:
            return _become_part(json.loads(message), files)
        for file in files:
            os.close(file)
        _say(requests, child, None)


def _say(requests: socket.socket, pid: int, code: int | None) -> None:
    try:
        requests.send(json.dumps([pid, code]).encode())
    except OSError:  # the supervisor was killed
        os._exit(0)


def _become_part(request: dict[str, Any], files: Sequence[int]) -> str:
    """Be the process that ``subprocess.Popen`` starts for a part."""
    os.setsid()
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    output, *inherited = [fcntl.fcntl(file, fcntl.F_DUPFD, _FREE_FROM) for file in files]
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.closerange(3, _FREE_FROM)
    for number, file in zip(request["numbers"], inherited, strict=True):
        os.dup2(file, number)
    os.closerange(_FREE_FROM, _FREE_FROM + 2 * _FILES_MAX)
    os.environ.clear()
    os.environ.update(request["env"])
    libc = ctypes.CDLL(None)
    for name, parameter in _MALLOPT.items():
        if name in os.environ:
            libc.mallopt(parameter, int(os.environ[name]))
    argv: list[str] = request["argv"]
    sys.orig_argv[:], sys.argv[:] = argv, argv[-1:]
    return argv[-1]


def _run(module: str) -> None:
    """Run a module as ``python -m`` does."""
    # The module may be among those that are imported.
    warnings.filterwarnings("ignore", category=RuntimeWarning, module="runpy")
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _serve(Path(sys.argv[1]), sys.argv[2])
