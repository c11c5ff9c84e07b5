"""The files of launchd and systemd, read back as those programs read them."""

from __future__ import annotations

import configparser
import os
import plistlib
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from ops.settings.settings import Settings
from ops.supervisor.machine import UNIT, MachineUnit, launchd_file, left_out, systemd_file, unit_of
from ops.supervisor.parts import parts_of

HOME = Path("/Users/a b")
ODD = Path('/data/50% "off" $HOME \\ end')


def _unit(data_dir: Path = ODD) -> MachineUnit:
    settings = Settings(data_dir=data_dir, api_key="sk-secret-of-mine")  # type: ignore[arg-type]  # pydantic reads text
    return unit_of(settings, home=HOME, search_path="/opt/my tools/bin:/usr/bin")


def _unquoted(line: str) -> list[str]:
    """Return the words of a command line by the rules of systemd.service(5)."""
    words = re.findall(r'"((?:\\.|[^"\\])*)"', line)
    plain = [re.sub(r"\\(.)", r"\1", word) for word in words]
    return [word.replace("$$", "$").replace("%%", "%") for word in plain]


def _systemd(unit: MachineUnit) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # names have case
    parser.read_string(systemd_file(unit))
    return parser


def test_launchd_gets_the_command_and_waits_longer_than_the_drain() -> None:
    job = plistlib.loads(launchd_file(_unit()))
    assert job["ProgramArguments"][-3:] == ["serve", "--data-dir", str(ODD)]
    assert job["ExitTimeOut"] > _drain_s()
    assert job["KeepAlive"] == {"SuccessfulExit": False}
    assert job["WorkingDirectory"] == str(HOME)
    assert job["EnvironmentVariables"]["PATH"].startswith("/opt/my tools/bin:/usr/bin:")


def test_systemd_gets_the_command_and_waits_longer_than_the_drain() -> None:
    service = _systemd(_unit())["Service"]
    assert _unquoted(service["ExecStart"]) == list(_unit().argv)
    assert service["Type"] == "exec"
    assert service["KillMode"] == "process"
    assert int(service["TimeoutStopSec"]) > _drain_s()
    assert service["WorkingDirectory"] == str(HOME)
    (path,) = _unquoted(service["Environment"])
    assert path.startswith("PATH=/opt/my tools/bin:/usr/bin:")


def _drain_s() -> float:
    return sum(part.grace_s for part in parts_of(Settings()).last_to_first())


def test_settings_that_cannot_work_are_not_tried_again() -> None:
    service = _systemd(_unit())["Service"]
    assert service["Restart"] == "on-failure"
    assert service["RestartPreventExitStatus"] == "65 78"


def test_files_hold_no_secret() -> None:
    unit = _unit()
    assert b"secret" not in launchd_file(unit)
    assert "secret" not in systemd_file(unit)
    environment = {
        "SEMANTIC_API_KEY": "sk-x",
        "semantic_server__port": "1",
        "SEMANTIC_CONFIG": "x",
        "PATH": "",
    }
    assert left_out(environment) == ("SEMANTIC_API_KEY", "semantic_server__port")


def test_configuration_file_is_named_in_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.toml").write_text("")
    monkeypatch.chdir(tmp_path)
    settings = Settings(config=Path("mine.toml"), data_dir=Path("data"))
    argv = unit_of(settings, home=HOME, search_path="").argv
    expected = ("--data-dir", str(tmp_path / "data"), "--config", str(tmp_path / "mine.toml"))
    assert argv[-4:] == expected


def test_path_with_a_line_break_is_refused() -> None:
    with pytest.raises(ValueError, match="control character"):
        systemd_file(_unit(Path("/data\nExecStart=/bin/evil")))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "semantic"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit = MachineUnit(
        argv=(str(program), "serve", "--data-dir", str(ODD)),
        home=tmp_path,
        search_path="/usr/bin",
        log_dir=tmp_path,
        stop_s=60,
    )
    file = tmp_path / UNIT
    file.write_text(systemd_file(unit))
    # The names of sockets of other units in it have 108 bytes at most.
    with tempfile.TemporaryDirectory() as runtime:
        done = subprocess.run(
            ["systemd-analyze", "verify", "--user", str(file)],
            env={**os.environ, "XDG_RUNTIME_DIR": runtime},
            capture_output=True,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, "")
