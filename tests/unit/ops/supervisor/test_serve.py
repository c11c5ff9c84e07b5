"""The exit code of a service that does not come up, by which service managers try again."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path

import pytest
import structlog
from rich.console import Console

from domain.errors import CorruptLog, LogNewer, LogUnavailable
from ops.exit_codes import ExitCode
from ops.settings.settings import Settings
from ops.supervisor import supervisor
from ops.supervisor.output import LineWriter, PartOutput, json_line
from ops.supervisor.parts import API, BROKER, WORKER, Part, Parts
from ops.supervisor.serve import error_stream, serve
from ops.supervisor.serve_record import CannotServe, ServeRecord, StartTimedOut
from ops.supervisor.startup_banner import StartupBanner
from ops.supervisor.supervisor import Supervisor


def _sleeper(name: str) -> Part:
    return Part(name=name, argv=("sleep", "600"), grace_s=10.0)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (LogUnavailable("the event log is locked"), ExitCode.FAILED),
        (StartTimedOut("the broker did not answer"), ExitCode.FAILED),
        (LogNewer("update semantic"), ExitCode.CONFIG),
        (CannotServe("the port is taken"), ExitCode.CONFIG),
        (CorruptLog(3, "a digest differs"), ExitCode.DAMAGED),
    ],
)
def test_only_an_error_that_stays_is_final(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], error: Exception, code: ExitCode
) -> None:
    def parts_for(_settings: Settings) -> Parts:
        raise error

    settings = Settings(data_dir=tmp_path, server={"port": 0})  # type: ignore[arg-type]  # pydantic checks
    assert serve(settings, parts_for) == code
    assert capsys.readouterr().err == f"semantic: {error}\n"


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("demo", "'demo' is no hub id (owner/name) and not semantic-demo"),
        ("/nowhere/model", "there is no directory /nowhere/model"),
        ("org/none", "org/none is not on this machine, and the hub at http://127.0.0.1:9"),
    ],
)
def test_named_model_that_is_nowhere_starts_no_process(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    model: str,
    reason: str,
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)

    def parts_for(_settings: Settings) -> Parts:
        raise AssertionError("parts are made")

    settings = Settings(data_dir=tmp_path / "data", model={"id": model})  # type: ignore[arg-type]  # pydantic checks
    assert serve(settings, parts_for, is_explicit=True) is ExitCode.CONFIG
    assert reason in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


def test_only_the_file_that_launchd_writes_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("ops.supervisor.serve.FILE_BYTES", 10**6)
    of_launchd = tmp_path / "Library" / "Logs" / "semantic" / "serve.jsonl"
    of_launchd.parent.mkdir(parents=True)
    sizes = []
    for path in (of_launchd, tmp_path / "stderr"):
        with path.open("a") as stream:
            monkeypatch.setattr("sys.stderr", stream)
            writer = LineWriter(error_stream())
            writer.put("x" * 10**6)
            writer.close()
        sizes.append(path.stat().st_size)
    assert sizes == [0, 10**6 + 1]


def test_broker_that_does_not_answer_is_a_start_that_timed_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "BROKER_START_MAX_S", 0.0)

    async def run() -> ExitCode:
        return await Supervisor(
            Settings(data_dir=tmp_path),
            Parts(broker=_sleeper(BROKER), worker=_sleeper(WORKER), api=_sleeper(API)),
            record=ServeRecord(pid=1, base_url="http://x", started_at="now"),
            prepare=lambda: None,
            banner=StartupBanner(Console(quiet=True)),
            logger=structlog.stdlib.get_logger(),
            output=PartOutput(
                LineWriter(io.StringIO()), json_line, files=LineWriter(io.StringIO())
            ),
            extra_environment={},
        ).run()

    with pytest.raises(StartTimedOut, match="the broker did not answer"):
        asyncio.run(run())
