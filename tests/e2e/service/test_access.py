"""A whole service behind a key: what listens, who sees the key, and that our commands have it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import psutil
import pytest

from tests.support.permissions import readable_by_others, umask
from tests.support.polling import WITHIN_S, scaled, wait_until
from tests.support.processes.service import Service

KEY = "correct-horse-battery-staple"
RUN_MAX_S = 180


def command(service: Service, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SEMANTIC_")}
    return subprocess.run(
        [sys.executable, "-m", "ops.cli.main", *words],
        env=kept | {"SEMANTIC_DATA_DIR": str(service.data_dir), **variables},
        capture_output=True,
        text=True,
        timeout=scaled(RUN_MAX_S),
        check=False,
    )


def listening(pid: int) -> set[tuple[str, int]]:
    return {
        (connection.laddr.ip, connection.laddr.port)
        for connection in psutil.Process(pid).net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }


def test_a_service_with_a_key(own_service: Callable[..., Service], tmp_path: Path) -> None:
    with umask(0o022):
        _make_open_data_dir(tmp_path / "data0")
        keys = {"SEMANTIC_API_KEY": KEY, "SEMANTIC_SERVER__API_KEYS": f'["laptop={KEY}"]'}
        service = own_service(cold=True, **keys)
    assert service.data_dir == tmp_path / "data0"
    _only_configured_sockets_listen(service)
    _assert_no_other_user_reads_the_key(service)
    _clients_need_it(service)
    _no_other_user_writes_what_the_worker_loads(service)
    _commands_send_it(service)
    assert readable_by_others(service.data_dir) == []
    assert service.stop() == 0, service.log()
    assert readable_by_others(service.data_dir) == []
    assert KEY not in service.log_file.read_text()


def _make_open_data_dir(data_dir: Path) -> None:
    """Make a data directory whose files other users may read."""
    for name in ("broker", "cache", "logs"):
        (data_dir / name).mkdir(parents=True)
    for name in ("events.sqlite3", "worker.lock"):
        (data_dir / name).touch()
    assert set(readable_by_others(data_dir)) > {"broker", "cache", "events.sqlite3"}


def _only_configured_sockets_listen(service: Service) -> None:
    supervisor = psutil.Process(service.process.pid)
    found = {child.pid: listening(child.pid) for child in [supervisor, *service.descendants()]}
    api = service.part("api.main").pid
    behind = found[api] - {("127.0.0.1", service.port)}
    # The public port, and the framework's behind the gate, which takes no request but the gate's.
    assert len(found[api]) == 2
    assert {ip for ip, _ in behind} == {"127.0.0.1"}
    assert not any(sockets for pid, sockets in found.items() if pid != api)
    (inner,) = behind
    answer = httpx.get(
        f"http://127.0.0.1:{inner[1]}/v1/models", headers=service.headers, timeout=scaled(WITHIN_S)
    )
    assert (answer.status_code, answer.content) == (403, b"")


def _assert_no_other_user_reads_the_key(service: Service) -> None:
    for child in service.descendants():
        assert KEY not in " ".join(child.cmdline())
        assert KEY not in " ".join(child.environ().values())
    # The service answers before it prints how a client connects.
    connect = "$SEMANTIC_API_KEY"
    log = wait_until(service.log_file.read_text, lambda text: connect in text)
    assert KEY not in log


def _clients_need_it(service: Service) -> None:
    assert httpx.get(f"{service.base_url}/health/live", timeout=scaled(WITHIN_S)).status_code == 200
    assert httpx.get(f"{service.base_url}/v1/models", timeout=scaled(WITHIN_S)).status_code == 401
    for key in (KEY, "wrong"):
        with (
            anthropic.Anthropic(base_url=service.base_url, api_key=key, max_retries=0) as claude,
            openai.OpenAI(base_url=f"{service.base_url}/v1", api_key=key, max_retries=0) as oai,
        ):
            if key == KEY:
                assert claude.models.list().data
                assert oai.models.list().data
            else:
                _sdks_name_the_error(claude, oai)


def _sdks_name_the_error(claude: anthropic.Anthropic, oai: openai.OpenAI) -> None:
    turn: Any = [{"role": "user", "content": "Hello."}]
    asks: list[Callable[[], object]] = [
        claude.models.list,
        lambda: claude.messages.create(model="m", max_tokens=1, messages=turn),
        lambda: claude.messages.count_tokens(model="m", messages=turn),
        lambda: claude.messages.batches.list(),
        oai.models.list,
        lambda: oai.chat.completions.create(model="m", messages=turn),
        lambda: oai.responses.create(model="m", input="Hello."),
        lambda: oai.embeddings.create(model="m", input="Hello."),
        oai.files.list,
    ]
    for ask in asks:
        with pytest.raises((anthropic.AuthenticationError, openai.AuthenticationError)) as caught:
            ask()
        refusal: Any = caught.value
        assert refusal.response.json()["error"]["type"] == "authentication_error"


def _no_other_user_writes_what_the_worker_loads(service: Service) -> None:
    """The kernels that MLX compiles; /tmp/mlx, their usual place, belongs to the first user."""
    worker = service.part("worker.main")
    loaded = [Path(one.path) for one in worker.memory_maps() if "/cpu/lib" in one.path]
    assert bool(loaded) == (shutil.which("g++") is not None), "MLX needs it to compile one"
    own = (service.data_dir / "tmp" / "mlx").resolve()
    assert [path for path in loaded if own not in path.parents] == []


def _commands_send_it(service: Service) -> None:
    settings = {"SEMANTIC_SERVER__API_KEYS": json.dumps([KEY])}
    assert command(service, "status", **settings).returncode == 0
    said = command(service, "run", "Say hello.", "--max-tokens", "4", SEMANTIC_API_KEY=KEY)
    assert said.returncode == 0, said.stderr
    refused = command(service, "run", "Say hello.")
    assert refused.returncode == 1
    assert "send a key" in refused.stderr
    _claude_has_the_umask_of_the_shell(service)
    lines = command(service, "launch", "claude", "--print", SEMANTIC_API_KEY=KEY)
    assert 'ANTHROPIC_AUTH_TOKEN="$SEMANTIC_API_KEY"' in lines.stdout
    assert KEY not in lines.stdout
    shown = command(service, "config", "show", **settings, SEMANTIC_API_KEY=KEY)
    assert "server.api_keys" in shown.stdout
    assert KEY not in shown.stdout


def _claude_has_the_umask_of_the_shell(service: Service) -> None:
    program = service.data_dir.parent / "claude"
    program.write_text("#!/bin/sh\numask\n")
    program.chmod(0o700)
    with umask(0o027):
        found = command(
            service, "launch", "claude", "--program", str(program), SEMANTIC_API_KEY=KEY
        )
    assert found.stdout.strip() == "0027", found.stderr


@pytest.mark.parametrize("words", [("serve",), ("serve", "--only", "api")])
def test_beyond_this_machine_it_takes_a_key(
    words: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> None:
    service = Service(tmp_path_factory.mktemp("open") / "data")
    refused = command(
        service, *words, "--host", "0.0.0.0", "--port", str(service.port), "--allow-remote"
    )
    assert refused.returncode == 78
    assert "SEMANTIC_SERVER__API_KEYS" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
