"""Workers, the api and the disk fail under a client; what it reads is what it would have read."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from domain.model.registry import DRAFT_HEAD
from ops.data_dir.lock import DataLock
from ops.supervisor.serve_record import PartRecord, read_record
from tests.support.clients.job_reader import WAIT_S, JobReader
from tests.support.clients.service_log import ended
from tests.support.models.tiny_heads import make_tiny_qwen
from tests.support.models.tiny_models import make_tiny_llama
from tests.support.polling import scaled, wait_until
from tests.support.processes.planted_constants import with_constants
from tests.support.processes.service import Service

_log = logging.getLogger(__name__)

TOKENS = 500
#: Jobs that are tried until a kill comes within an answer.
KILLS_MAX = 5
SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "sampled": {"temperature": 1.0, "seed": 11},
}
#: The worker hangs for so long before it is replaced.
SILENCE_S = 10.0


@pytest.fixture(scope="module")
def crashing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service that survives what is done to it; the tests take turns."""
    model = make_tiny_llama(
        tmp_path_factory.mktemp("models") / "tiny", hidden=128, layers=4, context=4096
    )
    service = Service(
        tmp_path_factory.mktemp("crashing") / "data",
        env=with_constants(
            {"SEMANTIC_MODEL__ID": str(model), "SEMANTIC_JOBS__WORKER_STANDBY": "true"},
            {"ops.supervisor.parts.WORKER_SILENCE_S": SILENCE_S},
        ),
    ).start()
    yield service
    assert service.stop() == 0, service.log()


@pytest.fixture(scope="module")
def undisturbed(crashing: Service) -> dict[str, str]:
    """Return what the jobs say when nothing happens."""
    texts: dict[str, str] = {}
    with httpx.Client(base_url=crashing.base_url, timeout=scaled(WAIT_S)) as http:
        for name in SAMPLINGS:
            with JobReader(crashing.base_url, submitted(http, name)) as reader:
                texts[name] = reader.whole()
    assert all(texts.values())
    return texts


@pytest.fixture
def http(crashing: Service) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=crashing.base_url, timeout=scaled(WAIT_S)) as client:
        yield client


def submitted(http: httpx.Client, sampling: str, **more: Any) -> str:
    body = {
        "model": "claude-any",
        "max_tokens": TOKENS,
        "messages": [{"role": "user", "content": "Tell me a long story."}],
    }
    reply = http.post("/v1/jobs", json=body | SAMPLINGS[sampling] | more)
    assert reply.status_code == 202, reply.text
    return str(reply.json()["id"])


def events(http: httpx.Client, stream: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = http.get("/v1/events", params={"stream": stream}).json()["data"]
    return found


def types(http: httpx.Client, stream: str) -> list[str]:
    return [event["type"] for event in events(http, stream)]


def _killed_amid(
    service: Service,
    http: httpx.Client,
    sampling: str,
    undisturbed: dict[str, str],
    *,
    has_standby: bool = False,
) -> tuple[str, datetime]:
    """Kill the worker within an answer, and read the answer to its end.

    On a busy machine an answer may be over when the kill comes; then another job is tried.
    A standby is awaited before each kill, and must be the next worker.
    """
    for _ in range(KILLS_MAX):
        standby = has_standby and wait_until(lambda: parts(service).get("standby"), within_s=WAIT_S)
        job_id = submitted(http, sampling)
        with JobReader(service.base_url, job_id) as reader:
            reader.wait_for(20)
            killed_at = datetime.now(UTC)
            service.part("worker").kill()
            assert reader.whole() == undisturbed[sampling]
        assert reader.connections == 1
        if reader.attempts != {1}:
            assert reader.attempts == {1, 2}
            assert not standby or parts(service)["worker"].pid == standby.pid
            return job_id, killed_at
    pytest.fail(f"each of {KILLS_MAX} answers was over when the worker was killed")


@pytest.mark.parametrize("sampling", ["greedy", pytest.param("sampled", marks=pytest.mark.nightly)])
def test_standby_continues_the_same_stream_of_a_killed_worker(
    crashing: Service, http: httpx.Client, undisturbed: dict[str, str], sampling: str
) -> None:
    job_id, killed_at = _killed_amid(crashing, http, sampling, undisturbed, has_standby=True)
    assert types(http, job_id).count("JobCompleted") == 1
    assert "activated the standby" in crashing.log()
    second = next(e for e in events(http, job_id) if e["data"].get("attempt") == 2)
    pause = datetime.fromisoformat(second["recorded_at"]) - killed_at
    _log.info("next attempt after %.3f s", pause.total_seconds())


@pytest.mark.parametrize("drafter", [pytest.param("head", marks=pytest.mark.nightly), "model"])
def test_killed_worker_is_a_pause_of_an_answer_with_drafts(
    own_service: Callable[..., Service], tmp_path: Path, drafter: str
) -> None:
    make = make_tiny_qwen if drafter == "head" else make_tiny_llama
    model = str(make(tmp_path / "model"))
    entry = {"source": model, "draft": DRAFT_HEAD if drafter == "head" else model}
    drafting = "worker.engine.mlx.drafting"
    service = own_service(
        **with_constants(
            {
                "SEMANTIC_MODEL__ID": "drafted",
                "SEMANTIC_MODELS": json.dumps({"drafted": entry}),
            },
            # Drafts win, whatever they cost.
            {f"{drafting}.speculation._MARGIN": 0.0, f"{drafting}.pass_times.LOSS_SHARE": 100.0},
        )
    )
    with httpx.Client(base_url=service.base_url, timeout=scaled(WAIT_S)) as http:
        with JobReader(service.base_url, submitted(http, "greedy")) as reader:
            expected = {"greedy": reader.whole()}
        wait_until(lambda: accepted_drafts(http) > 0, within_s=WAIT_S)
        _killed_amid(service, http, "greedy", expected)


def accepted_drafts(http: httpx.Client) -> int:
    figures = http.get("/admin/status").json()["drafts"]
    return 0 if figures is None else int(figures["accepted_tokens"])


def parts(service: Service) -> dict[str, PartRecord]:
    record = read_record(service.data_dir)
    assert record is not None
    return record.parts


def test_killed_worker_leaves_no_hole_in_likelihoods(crashing: Service, http: httpx.Client) -> None:
    whole, _ = likelihoods(crashing, http, kill_after=None)
    told, job_id = likelihoods(crashing, http, kill_after=20)
    assert types(http, job_id).count("AttemptStarted") == 2
    assert [one["token"] for one in told] == [one["token"] for one in whole]
    for one, other in zip(told, whole, strict=True):
        # The next attempt reads what was said in other pieces, which may round otherwise.
        assert one["logprob"] == pytest.approx(other["logprob"], abs=0.01)
        assert len(one["top_logprobs"]) == 2
    assert http.get(f"/v1/jobs/{job_id}").json()["output"]["logprobs"] == told


def likelihoods(
    service: Service, http: httpx.Client, *, kill_after: int | None
) -> tuple[list[dict[str, Any]], str]:
    """Return what a chat stream tells of its tokens, and its job; its worker dies on the way."""
    body: dict[str, Any] = {
        "model": "claude-any",
        "max_tokens": TOKENS,
        "messages": [{"role": "user", "content": "Tell me a long story."}],
        "logprobs": True,
        "top_logprobs": 2,
        "stream": True,
    }
    told: list[dict[str, Any]] = []
    job_id = ""
    with http.stream("POST", "/v1/chat/completions", json=body | SAMPLINGS["sampled"]) as reply:
        for line in reply.iter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line.removeprefix("data: "))
            job_id = chunk["id"].replace("chatcmpl-", "job-")
            told += (chunk["choices"][0]["logprobs"] or {"content": []})["content"]
            if kill_after is not None and len(told) >= kill_after:
                service.part("worker").kill()
                kill_after = None
    return told, job_id


def test_worker_that_hangs_is_replaced_and_says_no_more(
    crashing: Service, http: httpx.Client, undisturbed: dict[str, str]
) -> None:
    job_id = submitted(http, "sampled")
    with JobReader(crashing.base_url, job_id) as reader:
        reader.wait_for(20)
        worker = crashing.part("worker")
        worker.suspend()
        assert reader.whole() == undisturbed["sampled"]
    assert not worker.is_running()
    assert reader.connections == 1
    assert types(http, job_id).count("JobCompleted") == 1


def test_killed_api_is_a_reconnect_and_the_generation_never_stopped(
    crashing: Service, http: httpx.Client, undisturbed: dict[str, str]
) -> None:
    for _ in range(KILLS_MAX):
        job_id = submitted(http, "sampled")
        with JobReader(crashing.base_url, job_id) as reader:
            reader.wait_for(20)
            crashing.part("api").kill()
            assert reader.whole() == undisturbed["sampled"]
        crashing.wait_ready()
        assert reader.attempts == {1}
        assert types(http, job_id) == ["JobSubmitted", "AttemptStarted", "JobCompleted"]
        if reader.connections >= 2:
            return
    pytest.fail(f"each of {KILLS_MAX} answers was over when the api was killed")


@pytest.mark.skipif(sys.platform != "linux", reason="limits of a running process need Linux")
def test_full_disk_refuses_in_the_callers_words_and_nothing_is_half_written(
    crashing: Service, http: httpx.Client
) -> None:
    head = http.get("/v1/events", params={"limit": 1}).json()
    assert head["data"]
    message = {
        "model": "claude-any",
        "max_tokens": 4,
        "messages": [{"role": "user", "content": "Hi"}],
    }
    submitted_before = submissions(http)
    with no_room(crashing.part("api")):
        job = http.post("/v1/jobs", json=message)
        claude = http.post("/v1/messages", json=message)
        openai = http.post("/v1/chat/completions", json=message | {"stream": True})
        assert [job.status_code, claude.status_code, openai.status_code] == [503, 503, 503]
        assert job.json()["code"] == "log_unavailable"
        assert claude.json()["error"]["type"] == "overloaded_error"
        assert openai.json()["error"]["code"] == "log_unavailable"
        assert all(reply.headers["x-should-retry"] == "true" for reply in (job, claude, openai))
        assert all("retry-after" in reply.headers for reply in (job, claude, openai))
    assert submissions(http) == submitted_before
    assert http.post("/v1/messages", json=message).status_code == 200
    assert submissions(http) == submitted_before + 1
    checked = crashing.semantic("log", "verify")
    assert checked.returncode == 0, checked.stdout + checked.stderr


def submissions(http: httpx.Client) -> int:
    found = http.get("/v1/events?type=JobSubmitted&limit=1000").json()["data"]
    return len(found)


@contextmanager
def no_room(process: psutil.Process) -> Iterator[None]:
    """Let a process write no byte into any file, as on a full disk."""
    before = process.rlimit(psutil.RLIMIT_FSIZE)
    process.rlimit(psutil.RLIMIT_FSIZE, (1, before[1]))
    try:
        yield
    finally:
        process.rlimit(psutil.RLIMIT_FSIZE, before)


def test_job_that_kills_its_worker_twice_before_a_word_is_given_up(
    own_service: Callable[..., Service], tmp_path: Path
) -> None:
    model = make_tiny_llama(tmp_path / "slow", hidden=256, layers=8, context=32_768)
    service = own_service(
        **with_constants(
            {"SEMANTIC_MODEL__ID": str(model), "SEMANTIC_CACHE__DISK_BUDGET_GB": "0"},
            {
                "worker.engine.mlx.rows.running_sequences.CPU_PIECE_TOKENS": 16,
                "worker.engine.mlx.rows.running_sequences.GPU_PIECE_TOKENS": 16,
            },
        )
    )
    with httpx.Client(base_url=service.base_url, timeout=scaled(WAIT_S)) as http:
        # Minutes of reading before the first word, on any machine of today.
        long = [{"role": "user", "content": "the quick brown fox jumps over the lazy dog " * 500}]
        job_id = submitted(http, "greedy", messages=long)
        for attempt in (1, 2):
            wait_until(partial(has_begun, http, job_id, attempt), within_s=WAIT_S)
            service.part("worker").kill()
        job = ended(http, job_id)
        assert (job["status"], job["attempt"]) == ("failed", 2)
        assert "2 workers in a row died on this job" in job["error"]["message"]
        assert types(http, job_id)[-1] == "JobFailed"
        # The next job of the same service is well.
        with JobReader(service.base_url, submitted(http, "greedy", max_tokens=4)) as reader:
            assert reader.whole()
    story = service.semantic("jobs", "show", job_id, "--story").stdout
    assert "2 workers in a row died on this job" in story
    assert service.stop() == 0


def has_begun(http: httpx.Client, job_id: str, attempt: int) -> bool:
    return bool(http.get(f"/v1/jobs/{job_id}").json()["attempt"] == attempt)


def test_zombie_is_refused_by_its_attempt_number(
    own_service: Callable[..., Service], tmp_path: Path
) -> None:
    """A second worker takes over what a stopped one holds; then the first one goes on."""
    service = own_service(SEMANTIC_ENGINE__STEP_LIMIT_S="0")
    with httpx.Client(base_url=service.base_url, timeout=scaled(WAIT_S)) as http:
        with JobReader(service.base_url, submitted(http, "sampled")) as reader:
            expected = reader.whole()
        job_id = submitted(http, "sampled")
        with JobReader(service.base_url, job_id) as reader:
            reader.wait_for(20)
            zombie = service.part("worker")
            zombie.suspend()
            with second_worker(service, tmp_path / "second"):
                assert reader.whole() == expected
                zombie.resume()
                wait_until(lambda: "attempt_superseded" in service.log(), within_s=WAIT_S)
        assert types(http, job_id) == [
            "JobSubmitted",
            "AttemptStarted",
            "AttemptStarted",
            "JobCompleted",
        ]
        assert reader.attempts == {1, 2}
        # It lives on, and takes the next job.
        with JobReader(service.base_url, submitted(http, "sampled")) as reader:
            assert reader.whole() == expected
    assert service.stop() == 0


@contextmanager
def second_worker(service: Service, data_dir: Path) -> Iterator[None]:
    """Run a worker with a data directory of its own on the log and the broker of a service."""
    broker = (service.data_dir / "broker.url").read_text().strip()
    env = {key: value for key, value in os.environ.items() if not key.startswith("SEMANTIC_")}
    env |= {
        "SEMANTIC_DATA_DIR": str(data_dir),
        "SEMANTIC_LOG__URL": f"sqlite:///{service.data_dir / 'events.sqlite3'}",
        "SEMANTIC_REDIS__URL": broker,
    }
    with subprocess.Popen([sys.executable, "-m", "worker.main"], env=env) as worker:
        try:
            yield
        finally:
            worker.send_signal(signal.SIGTERM)
            worker.wait(scaled(WAIT_S))


def test_service_starts_once_the_processes_of_a_killed_one_have_ended(tmp_path: Path) -> None:
    service = Service(tmp_path / "data")
    with ThreadPoolExecutor(1) as pool, ExitStack() as stack:
        locks = {
            lock: stack.enter_context(DataLock(service.data_dir / lock))
            for lock in ("broker/broker.lock", "worker.lock")
        }
        started = pool.submit(service.start)
        for name, held in locks.items():
            wait_until(partial(has_refused, service, Path(name).name), ignore=FileNotFoundError)
            assert not started.done()
            held.release()
        started.result()
    assert service.stop() == 0, service.log()


def has_refused(service: Service, lock: str) -> bool:
    return f"holds {lock}" in service.log()
