"""A server of the comparison: how it is started, restart, kill and request."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import httpx
import psutil

from bench.client import Message, StreamTrace, chat_body, stream_together
from ops.supervisor.serve_record import read_record
from tests.support.processes.service import free_port


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where one server runs.

    Attributes:
        python: Interpreter of the environment that has the server.
        model: Directory of the model.
        data_dir: The only directory that it may write to; kept across restarts.
        port: Loopback port to listen on.
        kv_budget_mb: Most memory of its contexts, in units of 2^20 bytes; ``None`` for its default.
    """

    python: Path
    model: Path
    data_dir: Path
    port: int
    kv_budget_mb: int | None = None

    def filled(self, text: str) -> str:
        """Return a text with the fields of this place; ``{bin}`` is where scripts are."""
        fields: dict[str, object] = {
            "python": self.python,
            "bin": self.python.parent,
            "model": self.model,
        }
        budget = self.kv_budget_mb or 0
        fields |= {"data": self.data_dir, "port": self.port}
        fields |= {"mb": budget, "gb": budget / 1024, "bytes": budget * 2**20}
        return text.format(**fields)


ROOT: Final = Path(__file__).parents[2]
#: Keeps a server off the network, and its files in its own directory.
OFFLINE: Final = {
    "HOME": "{data}",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "DO_NOT_TRACK": "1",
    # MLX compiles kernels of a CPU into it, which a first start has to do as well.
    "TMPDIR": "{data}",
}
#: The same for a server in an environment of its own, which imports ``bench.blas``.
ELSEWHERE: Final = {**OFFLINE, "PYTHONPATH": str(ROOT)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """How a server is started.

    Attributes:
        name: Its name in the table.
        distribution: The distribution whose version is printed under the table.
        words: The command line, with fields of its place.
        variables: Variables in addition to the harness's own, with fields of its place.
        ready_path: Path that answers 200 once the model is loaded.
        budget: Options and variables that bound the memory of its contexts.
    """

    name: str
    distribution: str
    words: str
    ready_path: str
    variables: Mapping[str, str] = field(default_factory=lambda: OFFLINE)
    budget: Mapping[str, str] = field(default_factory=dict)

    def command(self, place: Place) -> list[str]:
        """Return the command line."""
        bound = self._bound(place, are_options=True)
        words = [*self.words.split(), *(word for pair in bound.items() for word in pair)]
        return [place.filled(word) for word in words]

    def environment(self, place: Place) -> dict[str, str]:
        """Return the variables."""
        variables = {**self.variables, **self._bound(place, are_options=False)}
        return {name: place.filled(value) for name, value in variables.items()}

    def _bound(self, place: Place, *, are_options: bool) -> dict[str, str]:
        if place.kv_budget_mb is None:
            return {}
        pairs = self.budget.items()
        return {name: value for name, value in pairs if name.startswith("-") == are_options}


SEMANTIC: Final = Adapter(
    name="semantic",
    distribution="semantic",
    words="{python} -m ops.cli.main serve",
    ready_path="/health/ready",
    variables={
        # The harness's own tree, even where another version is installed.
        "PYTHONPATH": str(ROOT),
        "SEMANTIC_DATA_DIR": "{data}",
        "SEMANTIC_SERVER__PORT": "{port}",
        "SEMANTIC_MODEL__ID": "{model}",
    },
    budget={"SEMANTIC_ENGINE__KV_BUDGET_MB": "{mb}"},
)


def _other(name: str, distribution: str, program: str, **more: Any) -> Adapter:
    """Return a server of others, with the BLAS of the service."""
    words = f"{{python}} -m bench.blas {program} --host 127.0.0.1 --port {{port}}"
    fields = {"ready_path": "/health", "variables": ELSEWHERE} | more
    return Adapter(name=name, distribution=distribution, words=words, **fields)


# Its prompt cache is in memory only, and its running requests are not bounded.
MLX_LM: Final = _other(
    "mlx_lm.server",
    "mlx-lm",
    "mlx_lm.server:main --model {model} --log-level ERROR",
    variables=OFFLINE,
    budget={"--prompt-cache-bytes": "{bytes}"},
)
# It saves its prefix cache in the home directory when it stops. ``--pflash off`` disables the lossy
# prompt compression, so that it answers the same prompt.
RAPID_MLX: Final = _other(
    "rapid-mlx",
    "rapid-mlx",
    "rapid_mlx.cli:main serve {model} --pflash off --log-level WARNING",
    ready_path="/health/ready",
    budget={"--cache-memory-mb": "{mb}"},
)
# Its prefix cache is off by default.
MLX_VLM: Final = _other(
    "mlx_vlm.server",
    "mlx-vlm",
    "mlx_vlm.server:main --model {model} --log-level WARNING",
    variables={
        **ELSEWHERE,
        "APC_ENABLED": "1",
        "APC_HASH": "sha256",
        "APC_DISK_PATH": "{data}/apc",
    },
    budget={"APC_MEMORY_MAX_GB": "{gb}"},
)
VLLM_MLX: Final = _other(
    "vllm-mlx",
    "vllm-mlx",
    "vllm_mlx.cli:main serve {model} --continuous-batching",
    budget={"--cache-memory-mb": "{mb}"},
)
ADAPTERS: Final = {one.name: one for one in (SEMANTIC, MLX_LM, RAPID_MLX, MLX_VLM, VLLM_MLX)}


READY_WITHIN_S = 120.0
ENDED_WITHIN_S = 60.0
#: Tokens of an answer: enough to compare its text, cheap to generate.
MAX_TOKENS = 16
_POLL_S = 0.1


class Server(AbstractContextManager["Server"]):
    """One server and its data on disk, across all its restarts.

    It is a contender of ``bench.together``.

    Args:
        adapter: How the server is started.
        python: Interpreter of its environment.
        model: Directory of the model.
        data_dir: The only directory that it may write to.
        kv_budget_mb: Most memory of its contexts, in units of 2^20 bytes; ``None`` for its default.
    """

    keeps_prompts = True

    def __init__(
        self,
        adapter: Adapter,
        *,
        python: Path,
        model: Path,
        data_dir: Path,
        kv_budget_mb: int | None = None,
    ) -> None:
        self.adapter = adapter
        self.name = adapter.name
        self.python = python
        self.model = model
        self.data_dir = data_dir
        self._kv_budget_mb = kv_budget_mb
        self._port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._log_file = data_dir.with_suffix(".log")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        """Kill all its processes."""
        self.kill()

    def sibling(self, model: Path, data_dir: Path, kv_budget_mb: int | None = None) -> Server:
        """Return another server of the same kind that shares nothing with this one."""
        return Server(
            self.adapter,
            python=self.python,
            model=model,
            data_dir=data_dir,
            kv_budget_mb=kv_budget_mb,
        )

    @property
    def base_url(self) -> str:
        """Address of the running server."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def running(self) -> bool:
        """Whether its first process is alive."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it, wait until it is ready, and send a short request.

        Raises:
            RuntimeError: It ended or was not ready in time; the message has the end of its output.
        """
        assert not self.running, f"{self.adapter.name} runs already"
        self.data_dir.mkdir(parents=True, exist_ok=True)
        # Clients of a server that is killed under them find the next one.
        self._port = self._port or free_port()
        place = Place(
            python=self.python,
            model=self.model,
            data_dir=self.data_dir,
            port=self._port,
            kv_budget_mb=self._kv_budget_mb,
        )
        own = {key: value for key, value in os.environ.items() if not key.startswith("SEMANTIC_")}
        with self._log_file.open("ab") as log:
            self._process = subprocess.Popen(
                self.adapter.command(place),
                cwd=ROOT,
                env=own | self.adapter.environment(place),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._wait_ready()
        self.ask([{"role": "user", "content": "Hello"}])

    def stop(self) -> None:
        """Stop it with SIGTERM.

        Raises:
            RuntimeError: It did not end in time, and was killed.
        """
        assert self._process is not None, "not started"
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(ENDED_WITHIN_S)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"still there {ENDED_WITHIN_S:.0f} s after SIGTERM") from None
        finally:
            self.kill()

    def kill(self) -> None:
        """Kill all its processes with SIGKILL, like a power failure."""
        if self._process is None:
            return
        processes = family(self._process.pid) if self.running else []
        for process in processes:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        self._process.wait(10)
        psutil.wait_procs(processes, timeout=10)
        self._process = None

    def kill_engine(self) -> None:
        """Kill the process that computes; a server without a supervisor is started again."""
        if (record := read_record(self.data_dir)) is not None:
            psutil.Process(record.parts["worker"].pid).kill()
            return
        self.kill()
        self.start()

    def ask(self, messages: Sequence[Message], max_tokens: int = MAX_TOKENS) -> StreamTrace:
        """Return a greedy answer."""
        (answer,) = stream_together(
            self.base_url, [chat_body(str(self.model), messages, max_tokens)]
        )
        return answer

    def run(self, bodies: list[dict[str, Any]]) -> tuple[list[StreamTrace], float]:
        """Send requests at once; return the answers and the CPU seconds of all processes."""
        before = self.cpu_s()
        traces = stream_together(self.base_url, bodies)
        return traces, self.cpu_s() - before

    def cpu_s(self) -> float:
        """Return the CPU seconds of all its processes so far."""
        assert self._process is not None, "not started"
        return cpu_seconds(self._process.pid)

    def _wait_ready(self) -> None:
        assert self._process is not None, "not started"
        deadline = time.monotonic() + READY_WITHIN_S
        # One client: each new one reads all certificates, on a processor that the server needs.
        with httpx.Client(base_url=self.base_url, timeout=5, trust_env=False) as client:
            while time.monotonic() < deadline and self._process.poll() is None:
                try:
                    if client.get(self.adapter.ready_path).is_success:
                        return
                except httpx.HTTPError:
                    pass
                time.sleep(_POLL_S)
        output = self._log_file.read_text(errors="replace")[-2000:]
        self.kill()
        raise RuntimeError(f"not ready; its output ends with: {output}")


def family(pid: int) -> list[psutil.Process]:
    """Return a process and its living descendants."""
    try:
        parent = psutil.Process(pid)
        return [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def cpu_seconds(pid: int) -> float:
    """Return user and system time of a family, its ended members included.

    A child's time is added to its parent's when the child is reaped, so short-lived processes are
    counted exactly once.
    """
    total = 0.0
    for process in family(pid):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total
