"""AgentBlaster's contract check of the three protocols, by its unmodified command.

It demands certain words, which no model of three million parameters writes; a script writes them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.polling import scaled
from tests.support.processes.scripted_service import call, line, scripted_service
from tests.support.processes.service import Service

pytestmark = pytest.mark.nightly
PROGRAM = Path(sys.executable).parent / "agentblaster"
LINES = [
    line("Return only this exact text", "agentblaster-ok"),
    line(
        "Return exactly this JSON object", '{"status":"agentblaster-ok","marker":"contract-json"}'
    ),
    line("Call ping_agentblaster", call("ping_agentblaster", target="contract-tool")),
]
CHECKS = {
    "openai": {"model-list", "exact-chat", "streaming-text", "structured-json", "tool-call"},
    "openai-responses": {
        "model-list",
        "exact-chat",
        "streaming-text",
        "structured-json",
        "tool-call",
        "responses-stateful",
    },
    "anthropic": {"model-list", "exact-chat", "streaming-text", "tool-call"},
}


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    running = scripted_service(tmp_path_factory.mktemp("scripted"), LINES).start()
    yield running
    assert running.stop() == 0, running.log()


@pytest.mark.parametrize("contract", CHECKS)
def test_each_check_of_the_contract_passes(
    scripted: Service, tmp_path: Path, contract: str
) -> None:
    report = tmp_path / "report.json"

    def blaster(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [PROGRAM, "providers", *words],
            env=os.environ | {"HOME": str(tmp_path), "NO_COLOR": "1"},
            capture_output=True,
            text=True,
            check=False,
            timeout=scaled(120),
        )

    url = f"{scripted.base_url}/v1"
    added = blaster("add", "--name", "here", "--contract", contract, "--base-url", url)
    assert added.returncode == 0, added.stdout + added.stderr
    checked = blaster(
        *("contract-check", "--provider", "here", "--model", "scripted", "--execute"),
        *("--timeout", str(scaled(30)), "--output-json", str(report)),
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    found = {one["id"]: one["status"] for one in json.loads(report.read_text())["checks"]}
    assert found == dict.fromkeys(CHECKS[contract], "passed")
