"""Against the whole service: a repeated request joins its job, a deadline stops a job."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.support.clients.service_log import ended
from tests.support.polling import scaled
from tests.support.processes.service import Service

#: On ``endless``: six seconds, so that the answer is not over before the request is repeated.
LONG = {
    "model": "semantic-demo",
    "max_tokens": 60,
    "messages": [{"role": "user", "content": "Tell me a long story about a lighthouse."}],
    "stop_sequences": [],
    "seed": 5,
    "temperature": 1.0,
}
#: On a busy machine a job may expire before it begins; the next one has more time.
_DEADLINES_S = (1.0, 4.0, 16.0)
SESSION = {"x-claude-code-session-id": "session-of-the-test"}


@pytest.fixture
def http(service: Service) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=service.base_url, timeout=scaled(60)) as client:
        yield client


def test_client_that_lost_its_stream_is_given_the_same_answer_from_its_beginning(
    endless: Service,
) -> None:
    streamed = LONG | {"stream": True}
    with httpx.Client(base_url=endless.base_url, timeout=scaled(60)) as http:
        with http.stream("POST", "/v1/messages", json=streamed, headers=SESSION) as one:
            job_id = one.headers["x-semantic-job"]
            lines = one.iter_lines()
            next(lines)
        whole = http.post("/v1/messages", json=LONG, headers=SESSION)
        assert whole.headers["x-semantic-job"] == job_id
        assert whole.headers["x-semantic-attached"] in {"same_session", "same_answer"}
        job = ended(http, job_id)
    assert job["status"] == "completed"
    said = "".join(block.get("text", "") for block in whole.json()["content"])
    assert said == job["output"]["text"]


def test_fork_of_an_answer_goes_on_as_the_answer_did(http: httpx.Client) -> None:
    body = {"prompt": "Tell me a story about a lighthouse.", "max_tokens": 40, "temperature": 1.0}
    parent = ended(http, http.post("/v1/jobs", json=body | {"seed": 11}).json()["id"])
    fork = f"/v1/jobs/{parent['id']}/fork"
    same = ended(http, http.post(fork, json={"at": 7}).json()["id"])
    assert same["forked_from"] == {"id": parent["id"], "at": 7}
    assert same["output"] == parent["output"]
    other = ended(http, http.post(fork, json={"at": 7, "sampling": {"seed": 12}}).json()["id"])
    assert other["output"]["text"][0] == parent["output"]["text"][0]
    assert other["output"] != parent["output"]
    story = http.get(f"/v1/jobs/{same['id']}/timeline").json()["steps"]
    assert f"continues {parent['id']} after 7 tokens" in story[0]["text"]


def test_jobs_of_a_tag_are_cancelled_and_retried_in_one_request(endless: Service) -> None:
    body = {"prompt": "Tell me a long story.", "max_tokens": 100_000, "stop": [], "tags": ["bulk"]}
    with httpx.Client(base_url=endless.base_url, timeout=scaled(60)) as http:
        ids = {http.post("/v1/jobs", json=body).json()["id"] for _ in range(3)}
        other = http.post("/v1/jobs", json=body | {"tags": ["other"]}).json()["id"]
        wanted = {"filter": {"tags": ["bulk"]}}
        matched = http.post("/v1/jobs:cancel", json=wanted | {"dry_run": True}).json()
        assert {row["id"] for row in matched["data"]} == ids
        http.post("/v1/jobs:cancel", json=wanted)
        assert {ended(http, one)["status"] for one in ids} == {"cancelled"}
        assert http.get(f"/v1/jobs/{other}").json()["finished_at"] is None
        retried = http.post("/v1/jobs:retry", json=wanted).json()["data"]
        assert {(row["id"], row["result"]) for row in retried} == {(one, "retried") for one in ids}
        assert (
            http.get("/v1/jobs", params={"tag": "bulk", "status": "cancelled"}).json()["data"] == []
        )
        for tag in ("bulk", "other"):
            http.post("/v1/jobs:cancel", json={"filter": {"tags": [tag]}})
        assert http.post("/v1/jobs:pause", json=wanted).status_code == 404
        assert http.get("/v1/jobs:cancel").status_code == 405


def test_running_job_is_stopped_at_its_deadline(endless: Service) -> None:
    body = {"prompt": "Tell me a long story.", "max_tokens": 100_000, "stop": []}
    with httpx.Client(base_url=endless.base_url, timeout=scaled(60)) as http:
        for within_s in _DEADLINES_S:
            asked = body | {"finish_within_s": within_s}
            job = ended(http, http.post("/v1/jobs", json=asked).json()["id"])
            assert job["status"] == "expired"
            assert job["error"]["code"] == "expired"
            logged = http.get("/v1/events", params={"stream": job["id"]}).json()["data"]
            if "AttemptStarted" in [event["type"] for event in logged]:
                return
    raise AssertionError("no job began before its deadline")


def test_caller_may_wait_for_the_end(http: httpx.Client) -> None:
    body = {"prompt": "Say hello.", "max_tokens": 8}
    reply = http.post("/v1/jobs", json=body, headers={"prefer": "wait=30"})
    assert reply.status_code == 200
    assert reply.json()["status"] == "completed"
