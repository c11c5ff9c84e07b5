"""The commands of README, quick start and examples do what the pages show, against one service."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.docs.transcripts import Step, Transcript, blocks
from tests.support.polling import scaled, wait_until
from tests.support.processes.service import Service

#: Nightly until it has passed on a loaded machine many times: it compares whole outputs.
pytestmark = pytest.mark.nightly
ROOT = Path(__file__).parents[3]
PAGES = (
    "README.md",
    "docs/quickstart.md",
    "docs/examples/curl-and-phone.md",
    "docs/examples/disputed-answer.md",
)
#: Why blocks are not run here, and what shows the same. A page names one of these.
REASONS = {
    "needs Claude Code from npm; tests/e2e/agent_clis runs it",
    "downloads a model",
    "the moment of the kill decides the times; tests/e2e/faults kills workers",
}
START = "make demo"
_WITHIN_S = 120.0


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    running = Service(tmp_path_factory.mktemp("demo") / "data").start()
    yield running
    assert running.stop() == 0, running.log()


@pytest.mark.parametrize("page", PAGES)
def test_commands_do_what_the_page_shows(page: str, demo: Service, tmp_path: Path) -> None:
    (tmp_path / ".venv").symlink_to(Path(sys.executable).parents[1])
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    transcript = Transcript()
    for block in blocks((ROOT / page).read_text(encoding="utf-8")):
        if block.reason is None:
            for step in block.steps:
                check(step, transcript, demo, tmp_path)
        else:
            assert block.reason in REASONS, f"list the reason: {block.reason}"


def check(step: Step, transcript: Transcript, demo: Service, folder: Path) -> None:
    if step.command == START:
        actual = banner(demo)
    else:
        # A reader of the page looks at a job later than the test does.
        end = "\nin all " if " jobs show " in step.command else ""
        actual = wait_until(
            lambda: run(transcript.command(step), demo, folder), lambda text: end in text
        )
    actual = actual.replace(str(demo.data_dir), "~/.local/share/semantic")
    actual = actual.replace(f":{demo.port}", ":8000")
    if step.output:
        shown = step.output
        assert transcript.matches(shown, actual), (
            f"$ {step.command}\n--- the page shows\n{shown}\n--- here\n{actual}"
        )


def banner(demo: Service) -> str:
    """Return what ``make demo`` prints: the line of the set-up, and the start of the service."""
    setting_up = re.search(r'"(setting up [^"]*)"', (ROOT / "Makefile").read_text())
    assert setting_up is not None
    # The service answers before it prints that it is ready.
    log = wait_until(
        lambda: demo.log_file.read_text(encoding="utf-8"), lambda text: "\nready in " in text
    )
    lines = re.findall(r"^(?:semantic \d|  [a-z]+ +\S|ready in ).*$", log, re.MULTILINE)
    # A page before may have killed the first worker.
    printed = "\n".join([setting_up[1].replace("$(VENV)", ".venv"), *lines])
    pid = demo.part("worker").pid
    return re.sub(r"(?<=starting · pid )\d+", str(pid), printed)


def run(command: str, demo: Service, folder: Path) -> str:
    env = {key: value for key, value in os.environ.items() if not key.startswith("SEMANTIC_")}
    env |= {
        "SEMANTIC_DATA_DIR": str(demo.data_dir),
        "SEMANTIC_SERVER__PORT": str(demo.port),
        "SERVICE_URL": demo.base_url,
        "NO_COLOR": "1",
        "COLUMNS": "200",
    }
    done = subprocess.run(
        ["bash", "-c", command.replace(":8000", f":{demo.port}")],
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=scaled(_WITHIN_S),
    )
    assert done.returncode == 0, f"$ {command}\n{done.stdout}"
    return done.stdout
