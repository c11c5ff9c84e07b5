"""The command line as a process: what it prints and how it exits."""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ops.cli.main import COMMANDS, GROUPS, NAMES, build_app
from tests.support.polling import scaled
from tests.support.processes.prepared_commands import PreparedCommands
from tests.support.processes.stand_in_jobs import ITEMS, StandInJobs

_ROOT = Path(__file__).parents[3]
_DEADLINE_S = 240


class Shell:
    """Runs ``semantic`` for a user of its own."""

    def __init__(self, home: Path, commands: PreparedCommands) -> None:
        self.home, self._commands = home, commands
        kept = {name: value for name, value in os.environ.items() if "SEMANTIC" not in name.upper()}
        self.variables = kept | {
            "HOME": str(home),
            "PYTHONPATH": str(_ROOT),
            "SEMANTIC_DATA_DIR": str(home / "data"),
            "TERM": "dumb",
            "COLUMNS": "200",
        }

    def start(self, *words: str, **variables: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "ops.cli.main", *words],
            cwd=self.home,
            env=self.variables | variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def call(self, *words: str, **variables: str) -> tuple[int, str, str]:
        """Do what ``run`` does in this process, for commands that need none of their own."""
        app = build_app(NAMES.intersection(words))
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self.home)
            for name in os.environ:
                if name not in self.variables:
                    patch.delenv(name)
            for name, value in (self.variables | variables).items():
                patch.setenv(name, value)
            done = CliRunner().invoke(app, words)
        return done.exit_code, done.stdout, done.stderr

    def run(self, *words: str, stdin: str = "", **variables: str) -> tuple[int, str, str]:
        """Run a command in a process of its own, which does not import it anew."""
        env = self.variables | variables
        return self._commands.run(*words, cwd=self.home, env=env, stdin=stdin)


@pytest.fixture
def shell(tmp_path: Path, prepared_commands: PreparedCommands) -> Shell:
    return Shell(tmp_path, prepared_commands)


def test_help_names_the_commands_and_the_exit_codes(shell: Shell) -> None:
    code, out, _ = shell.run("--help")
    assert code == 0
    for word in (
        "serve",
        "run",
        "jobs",
        "batch",
        "status",
        "doctor",
        "config",
        "log ",
        "78",
    ):
        assert word in out


@pytest.mark.parametrize("group", ["jobs", "batch", "config", "log"])
def test_help_of_a_group_names_its_commands(shell: Shell, group: str) -> None:
    code, out, _ = shell.call(group, "--help")
    assert code == 0
    assert "Commands" in out


#: Libraries that take a tenth of a second and more to import; ``typer`` needs pydantic for options.
HEAVY = (
    *("alembic", "dramatiq", "httpx", "mlx", "numpy", "opentelemetry", "prometheus_client"),
    *("psycopg", "pydantic_settings", "redis", "robyn", "sqlalchemy", "sqlmodel"),
    *("asyncio", "tokenizers", "transformers"),
)


def loaded_by(shell: Shell, *words: str, extra: str = "", **variables: str) -> list[str]:
    """Run a command, and return the heavy libraries that it has imported at its end."""
    code = f"""
import sys
from ops.cli.main import main
sys.argv = ["semantic", *{words!r}]
try:
    main()
except SystemExit as end:
    print("EXIT", end.code)
print("LOADED", *[name for name in {(*HEAVY, extra)!r} if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=shell.home,
        env=shell.variables | variables,
        capture_output=True,
        text=True,
        check=True,
        timeout=scaled(_DEADLINE_S),
    )
    *_, ended, loaded = done.stdout.splitlines()
    assert ended == "EXIT 0", done.stdout + done.stderr
    return loaded.split()[1:]


def test_help_loads_no_heavy_library(shell: Shell) -> None:
    assert loaded_by(shell, "--help", extra="pydantic") == []


@pytest.mark.parametrize(
    "words",
    [
        ("jobs", "ls"),
        ("jobs", "show", "job-1"),
        ("jobs", "cancel", "job-1"),
        ("jobs", "show", "--follow", "job-1"),
        ("run", "--no-wait", "hi"),
        ("run", "hi"),
    ],
)
def test_command_that_asks_the_service_loads_no_heavy_library(
    shell: Shell, words: tuple[str, ...]
) -> None:
    with StandInJobs() as api:
        assert loaded_by(shell, *words, SEMANTIC_SERVER__PORT=str(api.port)) == []


@pytest.mark.parametrize("words", [("status",), ("usage", "--by", "model"), ("agents", "ls")])
def test_command_that_asks_a_running_service_loads_no_heavy_library(
    shell: Shell, words: tuple[str, ...]
) -> None:
    with StandInJobs() as api, api.serving(shell.home / "data"):
        assert loaded_by(shell, *words) == []


def test_help_is_the_same_with_and_without_the_modules_of_the_commands() -> None:
    whole, light = (CliRunner().invoke(build_app(used), ["--help"]) for used in (NAMES, ()))
    assert light.output == whole.output
    assert {*COMMANDS, *GROUPS} == NAMES


def test_version_is_one_line(shell: Shell) -> None:
    code, out, _ = shell.run("--version")
    assert code == 0
    assert out.startswith("semantic ")
    assert out.count("\n") == 1


def test_unknown_command_is_misuse(shell: Shell) -> None:
    assert shell.run("bake")[0] == 2


def test_config_show_origin_says_who_set_what(shell: Shell) -> None:
    file = shell.home / "semantic.toml"
    file.write_text("[engine]\nmax_batch_size = 3\n")
    assert shell.call("config", "trust") == (
        0,
        f"trusted {file}, which sets: engine.max_batch_size\n",
        "",
    )
    code, out, _ = shell.call(
        "config", "show", "--origin", "--json", "--model", "org/m", SEMANTIC_SERVER__DRAIN_S="1"
    )
    assert code == 0
    values = json.loads(out)
    assert values["model.id"] == {"value": "org/m", "origin": "command line"}
    assert values["server.drain_s"] == {"value": 1.0, "origin": "environment"}
    assert values["engine.max_batch_size"] == {"value": 3, "origin": str(file)}
    assert values["server.port"] == {"value": 8000, "origin": "default"}


def test_the_secret_of_webhooks_is_that_of_the_file_that_serve_reads(shell: Shell) -> None:
    secret = "whsec_" + base64.b64encode(b"a secret of 24 characters").decode()
    (shell.home / "semantic.toml").write_text(f'[webhooks]\nsecret = "{secret}"\n')
    assert shell.call("webhooks", "ls", "--secret")[1] != f"{secret}\n"
    assert shell.call("config", "trust")[0] == 0
    assert shell.call("webhooks", "ls", "--secret") == (0, f"{secret}\n", "")
    undone = f"{shell.home / 'semantic.toml'} is no longer trusted\n"
    assert shell.call("config", "trust", "--undo") == (0, undone, "")
    assert shell.call("webhooks", "ls", "--secret")[1] != f"{secret}\n"


@pytest.mark.parametrize("before", [True, False])
def test_config_option_names_a_file_before_or_after_the_command(
    shell: Shell, *, before: bool
) -> None:
    (shell.home / "semantic.toml").write_text("[engine]\nmax_batch_size = 3\n")
    (shell.home / "one of mine.toml").write_text("[engine]\nmax_batch_size = 4\n")
    option, command = ["--config", "one of mine.toml"], ["config", "show", "--origin", "--json"]
    words = [*option, *command] if before else [*command, *option]
    code, out, _ = shell.call(*words, SEMANTIC_CONFIG="missing.toml")
    values = json.loads(out)
    assert code == 0
    assert values["config"] == {"value": "one of mine.toml", "origin": "command line"}
    origin = str(shell.home / "one of mine.toml")
    assert values["engine.max_batch_size"] == {"value": 4, "origin": origin}


def test_config_file_that_is_missing_ends_a_command_with_78(shell: Shell) -> None:
    worker = ["serve", "--only", "worker"]
    for words in (["config", "show"], ["serve"], worker, ["jobs", "ls"], ["log", "verify"]):
        code, _, err = shell.run(*words, SEMANTIC_CONFIG="missing.toml")
        assert (code, err.count("\n")) == (78, 1)
        assert "missing.toml cannot be read" in err


def test_setting_that_is_not_valid_is_named_with_78(shell: Shell) -> None:
    code, _, err = shell.call("config", "show", SEMANTIC_SERVER__PORT="http")
    assert code == 78
    assert "setting server.port:" in err
    assert "Traceback" not in err


def test_toml_file_that_is_none_is_told_with_78(shell: Shell) -> None:
    (shell.home / "semantic.toml").write_text("port = = 3")
    for words in (["config", "show", "--config", "semantic.toml"], ["config", "trust"]):
        code, _, err = shell.call(*words)
        assert (code, err.count("\n")) == (78, 1)
        assert "semantic.toml is not valid TOML" in err


def _doctor(shell: Shell, *words: str, **variables: str) -> tuple[int, dict[str, dict[str, str]]]:
    code, out, _ = shell.run("doctor", "--json", *words, **variables)
    report: dict[str, Any] = json.loads(out)
    assert report["ok"] == (code == 0)
    return code, {check["name"]: check for check in report["checks"]}


def _model_directory(home: Path) -> str:
    directory = home / "model"
    directory.mkdir()
    (directory / "config.json").write_text("{}")
    (directory / "model.safetensors").write_bytes(b"")
    return str(directory)


def test_doctor_passes_where_a_start_would_work(shell: Shell) -> None:
    code, checks = _doctor(shell, "--port", "0", "--model", _model_directory(shell.home))
    assert code == 0, checks
    assert set(checks) == {
        "config",
        "python",
        "platform",
        "sqlite",
        "event log",
        "broker",
        "mlx",
        "data",
        "permissions",
        "stored",
        "port",
        "model",
    }


def test_doctor_finds_the_taken_port_and_the_missing_model(shell: Shell) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = str(holder.getsockname()[1])
        code, checks = _doctor(shell, "--port", port, "--model", "./nowhere")
    assert code == 1
    assert checks["port"]["verdict"] == "fail"
    assert checks["model"]["verdict"] == "fail"
    assert checks["python"]["verdict"] == "ok"


def test_doctor_names_the_bundled_broker_without_redis_server(shell: Shell) -> None:
    model = _model_directory(shell.home)
    code, checks = _doctor(shell, "--port", "0", "--model", model, PATH=str(shell.home))
    assert code == 0
    assert checks["broker"]["verdict"] == "ok"
    assert "valkey-server" in checks["broker"]["detail"]


def test_status_without_a_service_says_so_with_3(shell: Shell) -> None:
    code, out, _ = shell.run("status")
    assert code == 3
    assert "not running" in out
    code, out, _ = shell.run("status", "--json")
    assert code == 3
    report = json.loads(out)
    assert report["running"] is False
    assert report["parts"] == {}


@pytest.mark.parametrize(
    "words",
    [
        ("run", "hello"),
        ("launch", "claude", "-p", "hello"),
        ("jobs", "ls"),
        ("jobs", "show", "--follow", "job-1"),
    ],
)
def test_without_a_service_one_line_says_what_to_do(shell: Shell, words: tuple[str, ...]) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))  # held and not listening: nobody answers
        port = str(probe.getsockname()[1])
        code, out, err = shell.run(*words, SEMANTIC_SERVER__PORT=port)
    assert code == 3
    assert out.strip() == ""
    assert err == (
        f"semantic: no service answers at http://127.0.0.1:{port}; start one: semantic serve\n"
    )


def test_run_prints_the_whole_answer_though_the_stream_broke_off(shell: Shell) -> None:
    with StandInJobs() as api:
        code, out, err = shell.run(
            *("run", "-", "--max-tokens", "9", "--seed", "7", "--temperature", "0"),
            *("--system", "Be brief."),
            stdin="tell me",
            SEMANTIC_SERVER__PORT=str(api.port),
        )
    assert (code, out, err) == (0, "once upon a time\n", "")
    assert api.resumed_after == [None, "1-1"]
    assert api.submitted == [
        {
            "prompt": "tell me",
            "max_tokens": 9,
            "temperature": 0.0,
            "seed": 7,
            "system": "Be brief.",
        }
    ]
    assert not api.cancelled.is_set()


def test_run_json_prints_the_finished_job(shell: Shell) -> None:
    with StandInJobs() as api:
        code, out, _ = shell.run("run", "hi", "--json", SEMANTIC_SERVER__PORT=str(api.port))
    assert code == 0
    assert json.loads(out)["output"]["text"] == "once upon a time"


def test_ctrl_c_in_a_run_cancels_the_job(shell: Shell) -> None:
    with (
        StandInJobs(hangs=True) as api,
        shell.start("run", "hi", SEMANTIC_SERVER__PORT=str(api.port)) as process,
    ):
        assert process.stdout is not None
        assert process.stdout.read(5) == "once "
        process.send_signal(signal.SIGINT)
        assert api.cancelled.wait(scaled(_DEADLINE_S))
        assert process.wait(scaled(_DEADLINE_S)) == 130


def test_jobs_are_listed_shown_streamed_cancelled_and_submitted(shell: Shell) -> None:
    with StandInJobs() as api:
        port = {"SEMANTIC_SERVER__PORT": str(api.port)}
        _, listed, _ = shell.run("jobs", "ls", **port)
        _, shown, _ = shell.run("jobs", "show", "job-1", **port)
        _, streamed, _ = shell.run("jobs", "show", "--follow", "job-1", "--json", **port)
        _, cancelled, _ = shell.run("jobs", "cancel", "job-1", "--json", **port)
        _, submitted, _ = shell.run("run", "--no-wait", "hi", **port)
    assert listed.splitlines()[1].startswith("job-1  completed  stand-in")
    assert listed.splitlines()[2].endswith("2 before it · waits for memory")
    assert listed.splitlines()[3].endswith("waits for model night")
    assert "once upon a time" in shown
    assert [json.loads(line) for line in streamed.splitlines()] == ITEMS
    assert json.loads(cancelled)["status"] == "cancelled"
    assert submitted == "job-1\n"


def test_jobs_of_tags_are_cancelled_and_a_dry_run_lists_them(shell: Shell) -> None:
    with StandInJobs() as api:
        port = {"SEMANTIC_SERVER__PORT": str(api.port)}
        _, dry, _ = shell.run("jobs", "cancel", "--tag", "night", "--tag", "b", "--dry-run", **port)
        _, done, more = shell.run("jobs", "cancel", "--tag", "night", **port)
        wrong = [
            shell.run("jobs", "cancel", *words, **port)[0]
            for words in ((), ("job-1", "--tag", "night"), ("job-1", "--dry-run"), ("--dry-run",))
        ]
    assert dry.splitlines()[1].split() == ["night", "matched", "matched"]
    assert done.splitlines()[1].split() == ["night", "cancelled", "cancelled"]
    assert more == "there are more: repeat the command\n"
    assert wrong == [2] * 4


def test_job_that_does_not_exist_is_told_in_the_words_of_the_service(shell: Shell) -> None:
    with StandInJobs() as api:
        code, _, err = shell.run("jobs", "show", "job-9", SEMANTIC_SERVER__PORT=str(api.port))
    assert code == 1
    assert err == "semantic: there is no such job (404)\n"
