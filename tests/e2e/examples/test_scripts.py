"""The scripts of ``docs/examples`` at full length, against one service."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.polling import WITHIN_S, scaled, wait_until
from tests.support.processes.examples import ENDED_WITHIN_S, EXAMPLES, begin, end, output_of, run
from tests.support.processes.planted_constants import with_constants
from tests.support.processes.service import Service, free_port

pytestmark = pytest.mark.nightly
WEBHOOKS = with_constants(
    {"SEMANTIC_WEBHOOKS__ALLOW_HOSTS": '["127.0.0.1"]'},
    {"domain.webhook.delivery.SCHEDULE_S": [1.0]},
)
#: A valid secret of the form that ``semantic webhooks ls --secret`` prints.
SECRET = "whsec_" + "c2VtYW50aWMtZXhhbXBsZS1zZWNyZXQtMzItYnl0ZXM="


@pytest.fixture(scope="module")
def example_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    running = Service(
        tmp_path_factory.mktemp("examples") / "data",
        env=WEBHOOKS | {"SEMANTIC_WEBHOOKS__SECRET": SECRET},
    ).start()
    yield running
    assert running.stop() == 0, running.log()


def test_ten_agents_compute_a_document_once(example_service: Service, tmp_path: Path) -> None:
    # A part of the page that a reader gets by default: a loaded machine reads ten copies of it.
    document = tmp_path / "document.md"
    document.write_text((EXAMPLES.parent / "agents.md").read_text()[:3000])
    output = run(example_service, tmp_path, "ten_agents.py", "--document", str(document))
    saved = re.search(r"forks computed ([\d.]+) times fewer tokens", output)
    assert saved is not None, output
    # One reading beside ten; a fork computes its question and the end of the shared context.
    assert float(saved[1]) > 3, output
    assert "What is the capital of Italy? " in output


def test_a_batch_survives_the_death_of_script_and_service(
    own_service: Iterator[Service], tmp_path: Path
) -> None:
    service = own_service(**WEBHOOKS, SEMANTIC_WEBHOOKS__SECRET=SECRET)  # type: ignore[operator]
    port, lines = free_port(), 400
    words = ("--name", "night", "--lines", str(lines), "--port", str(port), "--out", "out.jsonl")
    first = begin(service, tmp_path, "overnight_batch.py", *words, WEBHOOK_SECRET=SECRET)
    try:
        wait_until(lambda: answered(service) > 0, within_s=ENDED_WITHIN_S)
    finally:
        first.send_signal(signal.SIGKILL)
        end(first)
    service.kill()
    service.start()
    assert answered(service) < lines, "the batch ended before the kill"
    second = begin(service, tmp_path, "overnight_batch.py", *words, WEBHOOK_SECRET=SECRET)
    output = output_of(second)
    assert re.search(r"^batch_\w+ found, (?:validating|in_progress)$", output, re.MULTILINE)
    assert "webhook batch.completed, signature verified" in output
    assert f"completed, {lines} answers in out.jsonl" in output
    results = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [one["custom_id"] for one in results] == [f"line-{n + 1}" for n in range(lines)]
    assert service.stop() == 0, service.log()


def test_a_night_reads_files_and_sums_them_up(example_service: Service, tmp_path: Path) -> None:
    files = [tmp_path / f"note-{number}.md" for number in range(3)]
    for number, file in enumerate(files):
        file.write_text(f"What is the capital of {('France', 'Italy', 'Spain')[number]}?")
    words = ("nightly_summary.py", *map(str, files), "--at", "now")
    output = run(example_service, tmp_path, *words)
    found = re.search(r"jobs show (job-\w+)", output)
    assert found is not None, output
    url = f"{example_service.base_url}/v1/jobs/{found[1]}"
    done = wait_until(
        lambda: httpx.get(url, timeout=scaled(WITHIN_S)).json(),
        lambda seen: seen["status"] == "completed",
    )
    assert [one["name"] for one in done["after"]] == ["file-0", "file-1", "file-2"]
    readings = [
        httpx.get(url.replace(found[1], one["job"]), timeout=scaled(WITHIN_S)).json()
        for one in done["after"]
    ]
    assert all(one["status"] == "completed" for one in readings)


def test_a_context_is_known_after_the_death_of_the_worker(
    example_service: Service, tmp_path: Path
) -> None:
    def read(question: str) -> tuple[int, int, str]:
        output = run(example_service, tmp_path, "kept_context.py", "--question", question)
        found = re.search(r"known +([\d,]+) tokens, from (\w+)\ncomputed +([\d,]+) tokens", output)
        assert found is not None, output
        return int(found[1].replace(",", "")), int(found[3].replace(",", "")), found[2]

    known, document, source = read("What is the capital of France?")
    assert (known, source) == (0, "none")
    known, computed, source = read("What is the capital of Italy?")
    assert source == "ram"
    assert known + computed == document
    assert computed < document / 10
    example_service.kill_part("worker")
    known, computed, source = read("What is the capital of Spain?")
    assert source == "disk"
    assert computed < document / 10


def test_a_model_is_tried(example_service: Service, tmp_path: Path) -> None:
    output = run(example_service, tmp_path, "try_model.py")
    assert re.search(r"^structured output +yes$", output, re.MULTILINE), output
    assert len(re.findall(r"^[a-z ]+ holds: ", output, re.MULTILINE)) == 4, output


def answered(service: Service) -> int:
    """Return the answered lines of the newest batch."""
    try:
        batches = httpx.get(f"{service.base_url}/v1/batches", timeout=scaled(60)).json()["data"]
    except httpx.HTTPError:
        return 0
    return int(batches[0]["request_counts"]["completed"]) if batches else 0


def test_a_batch_whose_message_was_refused_still_gives_its_answers(
    example_service: Service, tmp_path: Path
) -> None:
    words = ("--name", "other-secret", "--lines", "2", "--port", str(free_port()))
    other = "whsec_" + "YW5vdGhlci1zZWNyZXQtb2YtdGhpcnR5LXR3by1ieXRlcw=="
    output = run(example_service, tmp_path, "overnight_batch.py", *words, WEBHOOK_SECRET=other)
    assert "no webhook came" in output
    assert "completed, 2 answers in night.jsonl" in output


def test_an_answer_is_proved_and_a_false_claim_is_not(
    example_service: Service, tmp_path: Path
) -> None:
    body = {"prompt": "What is the capital of France?", "agent_id": "customer-17", "max_tokens": 24}
    url = f"{example_service.base_url}/v1/jobs"
    job = httpx.post(url, json=body, headers={"prefer": "wait=60"}, timeout=scaled(120)).json()
    done = wait_until(
        lambda: httpx.get(f"{url}/{job['id']}", timeout=scaled(WITHIN_S)).json(),
        lambda seen: seen["status"] == "completed",
    )
    answer = done["output"]["text"]
    words = ("disputed_answer.py", "--agent", "customer-17", "--claim")
    true = run(example_service, tmp_path, *words, answer, "--out", "true")
    assert "claim     true, word for word" in true
    assert "replay    same: " in true
    assert "log       verifies" in true
    replayed = json.loads((tmp_path / "true" / "replay.json").read_text())
    assert (replayed["job"], replayed["verdict"]) == (job["id"], "same")
    false = run(example_service, tmp_path, *words, "It is Rome.", "--out", "false", code=1)
    assert "claim     false: no answer has these words" in false
    assert f"logged    {answer}" in false
