"""A batch outlives what carries it, and the command line follows one to its end."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

from bench.chaos.checker import check
from bench.chaos.faults import Fault, FaultInjector, PlannedFault
from bench.chaos.history import RequestSpec
from bench.chaos.load import Load
from bench.chaos.model import make_exact_model
from bench.chaos.run import Chaos, environment
from tests.support.polling import scaled, wait_until
from tests.support.processes.planted_constants import with_constants
from tests.support.processes.service import Service

LINES = 24
#: Each kill comes after this many results.
KILLS = ((Fault.WORKER, 6), (Fault.API, 12))
REQUESTS = [
    RequestSpec(prompt=question, max_tokens=8, temperature=0, seed=0)
    for question in ("What is the capital of France?", "Tell me a story.", "Say hello.")
]
CHAT: Any = {
    "model": "semantic-demo",
    "max_tokens": 8,
    "temperature": 0,
    "messages": [{"role": "user", "content": "Say hello."}],
}


def semantic(service: Service, *words: str, code: int = 0) -> str:
    done = service.semantic(*words)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout if code == 0 else done.stderr


def wait_for_results(service: Service, least: int) -> None:
    """Wait until so many lines of the batch have results; the api may be away."""

    def done() -> int:
        url = f"{service.base_url}/v1/messages/batches"
        listed = httpx.get(url, timeout=scaled(60)).raise_for_status().json()["data"]
        counts = [one["progress"] for one in listed]
        return max((sum(one.values()) - one["processing"] for one in counts), default=0)

    wait_until(
        done,
        lambda count: count >= least,
        within_s=600,
        ignore=httpx.HTTPError,
        describe=service.log,
    )


def test_batch_survives_kills_of_worker_and_api_with_each_result_once(
    own_service: Callable[..., Service], tmp_path: Path
) -> None:
    # A small window: the api dies with lines that are no jobs yet.
    env = environment(make_exact_model(tmp_path / "model"))
    env["SEMANTIC_JOBS__WORKER_STANDBY"] = "false"
    small = {"domain.batch.driver.LINES_WAITING_MAX": 6}
    service = own_service(**with_constants(env, small))
    lines = tuple(REQUESTS[number % len(REQUESTS)] for number in range(LINES))

    def work(load: Load, injector: FaultInjector) -> None:
        with ThreadPoolExecutor(1) as pool:
            sent = pool.submit(load.send_batch, lines)
            for number, (fault, results) in enumerate(KILLS, start=1):
                wait_for_results(service, results)
                injector.inject(
                    PlannedFault(
                        number=number, fault=fault, gap_s=0, hasty=True, lasts_s=0, seed=number
                    )
                )
            sent.result()

    history = Chaos(service, seed=1, clients=0, requests=REQUESTS, log=print).record(work)
    assert check(history) == ()
    (batch,) = (one for one in history.operations if one.lines)
    assert [one.status for one in batch.results] == ["succeeded"] * LINES


def test_cli_submits_a_file_of_either_kind_and_writes_its_results(
    service: Service, tmp_path: Path
) -> None:
    ours = [{"custom_id": f"m{n}", "params": CHAT} for n in range(3)]
    theirs = [
        {"custom_id": f"c{n}", "method": "POST", "url": "/v1/chat/completions", "body": CHAT}
        for n in range(3)
    ]
    batch_id = ""
    for lines in (ours, theirs):
        file, out = tmp_path / "lines.jsonl", tmp_path / "results.jsonl"
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        said = semantic(service, "batch", "submit", str(file), "--out", str(out))
        batch_id = said.split()[0]
        told = [json.loads(line)["custom_id"] for line in out.read_text().splitlines()]
        assert told == [line["custom_id"] for line in lines]
        assert semantic(service, "batch", "show", "--results", batch_id) == out.read_text()
    assert batch_id in semantic(service, "batch", "ls").splitlines()[1]


def test_cli_cancels_a_batch_and_says_why_lines_are_none(service: Service, tmp_path: Path) -> None:
    file = tmp_path / "lines.jsonl"
    long = {"params": CHAT | {"max_tokens": 4000, "temperature": 1.0}}
    file.write_text("".join(json.dumps({"custom_id": f"l{n}"} | long) + "\n" for n in range(10)))
    batch_id = semantic(service, "batch", "submit", str(file), "--no-wait").strip()
    semantic(service, "batch", "cancel", batch_id)
    semantic(service, "batch", "cancel", batch_id)
    file.write_text('{"custom_id": "a", "url": "/v1/chat/completions"}\n')
    refused = semantic(service, "batch", "submit", str(file), code=1)
    assert "line 1: method must be POST" in refused
