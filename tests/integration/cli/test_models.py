"""``semantic models plan`` as a process."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from typer.testing import CliRunner

from docs.site.plan_table import PAGE, with_table
from ops.cli.main import build_app
from ops.cli.plan import memory_size
from tests.support.processes.prepared_commands import PreparedCommands
from worker import plan as planner

ROOT = Path(__file__).parents[3]
QWEN = "tests/fixtures/configs/Qwen3-14B"
GIB = 1 << 30

Planner = Callable[..., tuple[int, str, str]]


class _Hub(BaseHTTPRequestHandler):
    """Serves the configuration of one model, and records what is requested."""

    requested: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
        del format, args

    def _answer(self, *, with_body: bool) -> None:
        self.requested.append(self.path)
        body = (ROOT / QWEN / "config.json").read_bytes()
        self.send_response(200)
        for name, value in (
            ("content-length", str(len(body))),
            ("etag", '"1"'),
            ("x-repo-commit", "a" * 40),
        ):
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)


@pytest.fixture
def hub() -> Iterator[str]:
    _Hub.requested.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def plan(*words: str) -> tuple[int, str, str]:
    """Run the command and its planner in this process: MLX-LM takes seconds to import."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "run", planned_here)
        done = CliRunner().invoke(build_app({"models"}), ["models", "plan", *words])
    return done.exit_code, done.stdout, done.stderr


def planned_here(argv: Sequence[str], **given: Any) -> subprocess.CompletedProcess[str]:
    """Do in this process what the planner does in one of its own."""
    assert argv[-1] == planner.__name__
    umask, out = os.umask(0), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", io.StringIO(given["input"]))
        patch.setattr(sys, "stdout", out)
        code = planner.main()
    os.umask(umask)
    return subprocess.CompletedProcess(argv, code, out.getvalue(), "")


@pytest.fixture
def plan_process(tmp_path: Path, prepared_commands: PreparedCommands) -> Planner:
    kept = {name: value for name, value in os.environ.items() if "SEMANTIC" not in name.upper()}
    own = {
        "HOME": str(tmp_path),
        "PYTHONPATH": str(ROOT),
        "SEMANTIC_DATA_DIR": str(tmp_path / "data"),
        "HF_HOME": str(tmp_path / "hub"),
        "HF_HUB_OFFLINE": "1",
        "TERM": "dumb",
        "COLUMNS": "200",
    }

    def run(*words: str, **variables: str) -> tuple[int, str, str]:
        env = kept | own | variables
        return prepared_commands.run("models", "plan", *words, cwd=ROOT, env=env)

    return run


def test_page_shows_the_output_of_the_command(plan_process: Planner) -> None:
    words = (QWEN, "--bits", "4", "--memory", "24GB")
    code, out, err = plan_process(*words)
    assert (code, err) == (0, "")
    assert f"$ semantic models plan {' '.join(words)}\n{out}```" in PAGE.read_text()


def test_json_has_the_sizes_in_bytes() -> None:
    code, out, _ = plan(str(ROOT / QWEN), "--bits", "4", "--memory", "24GiB", "--json")
    plan_ = json.loads(out)
    assert code == 0
    assert plan_["device_bytes"] == 16 * GIB
    assert plan_["weights_bytes"] == 8_307_783_680
    assert plan_["kv_token_bytes"] == 163_840
    assert (plan_["resident_contexts"], plan_["fits"]) == (1, True)


def test_too_little_memory_is_said_plainly_and_exits_with_1() -> None:
    code, out, _ = plan(str(ROOT / QWEN), "--memory", "24GB")
    assert code == 1
    assert "The model does not fit" in out.splitlines()[-1]


def test_this_machine_is_the_default() -> None:
    code, out, err = plan("semantic-demo", "--agents", "2", "--context", "1000")
    assert (code, err) == (0, "")
    assert "2 of 2 contexts" in out


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "is not JSON"),
        ("\x00\x01", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[1]", "holds no JSON object"),
        ("{}", "no model_type"),
        ('{"model_type": "nonsense"}', "mlx-lm has no model type 'nonsense'"),
        ('{"model_type": "../llama"}', "mlx-lm has no model type"),
        (None, "holds no config.json"),
    ],
)
def test_a_config_that_cannot_be_planned_is_one_line(
    tmp_path: Path, text: str | None, reason: str
) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    code, out, err = plan(str(tmp_path), "--memory", "24GB")
    assert (code, out) == (78, "")
    assert reason in err
    assert err.startswith("semantic: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("no-such-directory", "there is no directory"),
        ("/no/such/directory", "there is no directory"),
        ("nobody/nothing", "is not on this machine, and HF_HUB_OFFLINE is set"),
    ],
)
def test_a_missing_model_is_one_line(plan_process: Planner, model: str, reason: str) -> None:
    code, _, err = plan_process(model, "--memory", "24GB")
    assert code == 78
    assert reason in err
    assert err.count("\n") == 1


def test_only_the_configuration_is_downloaded_and_once(plan_process: Planner, hub: str) -> None:
    words = ("owner/name", "--bits", "4", "--memory", "24GB")
    first = plan_process(*words, HF_ENDPOINT=hub, HF_HUB_OFFLINE="0")
    assert (first[0], first[2]) == (0, "")
    assert {path for path in _Hub.requested if "owner/name" in path} == {
        "/api/models/owner/name",
        "/owner/name/resolve/main/config.json",
    }
    assert plan_process(*words) == first


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--memory", "lots"), "is no size; examples: 24GB"),
        (("--memory", "24"), "is no size"),
        (("--memory", "-1GB"), "is no size"),
        (("--memory", "0GB"), "is no memory"),
        (("--bits", "7"), "is none of 2, 3, 4, 5, 6, 8"),
        (("--agents", "0"), "agents"),
        (("--context", "0"), "context"),
        (("--disk-rate", "0"), "disk-rate"),
    ],
)
def test_a_wrong_option_exits_with_2(words: tuple[str, ...], reason: str) -> None:
    code, out, err = plan(str(ROOT / QWEN), *words)
    assert (code, out) == (2, "")
    assert reason in err


def test_sizes_are_read_as_machines_are_sold() -> None:
    assert memory_size("24GB") == memory_size("24 gib") == 24 * GIB
    assert memory_size("16000MB") == 16_000 << 20
    assert memory_size("0.5TB") == 512 * GIB


def test_table_of_the_page_is_that_of_the_command() -> None:
    page = PAGE.read_text()
    assert page == with_table(page), "run: make packages"
