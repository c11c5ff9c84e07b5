"""Batches of every endpoint: each result has the format of a single reply."""

from __future__ import annotations

import json
from typing import Any

import openai.types.chat
import openai.types.responses
import pytest
from pydantic import BaseModel

from domain.chat.schema_bounds import MULTIPLE_MAX
from domain.engine.workers import WorkerPulse
from domain.values import WorkerId
from tests.support.builders.api import FakeApi
from tests.support.builders.batch_services import advance
from tests.unit.api.dialects.batches.test_batch_routes import answer, lines_of, scenario, upload

_TURN = [{"role": "user", "content": "hi"}]
_CHAT, _TEXT, _RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
_BODIES: dict[str, dict[str, Any]] = {
    _CHAT: {"model": "m", "messages": _TURN},
    _TEXT: {"model": "m", "prompt": "Once", "stop": "END"},
    _RESPONSES: {"model": "m", "input": _TURN, "metadata": {"of": "me"}},
}
_SHAPES: dict[str, type[BaseModel]] = {
    _CHAT: openai.types.chat.ChatCompletion,
    _TEXT: openai.types.Completion,
    _RESPONSES: openai.types.responses.Response,
}


async def _batch(api: FakeApi, endpoint: str, *bodies: dict[str, Any]) -> str:
    lines = [
        {"custom_id": f"l{n}", "method": "POST", "url": endpoint, "body": body}
        for n, body in enumerate(bodies)
    ]
    reply = await upload(api, "\n".join(map(json.dumps, lines)).encode())
    asked = {
        "input_file_id": json.loads(reply.body)["id"],
        "endpoint": endpoint,
        "completion_window": "24h",
    }
    created = await api.json("POST", "/v1/batches", asked)
    assert created["endpoint"] == endpoint
    for _ in range(2):
        advance(api.app)
    return f"/v1/batches/{created['id']}"


async def _results(api: FakeApi, path: str, part: str) -> list[Any]:
    advance(api.app)
    shown = await api.json("GET", path)
    assert shown["status"] == "completed"
    return await lines_of(api, f"/v1/files/{shown[f'{part}_file_id']}/content")


@pytest.mark.parametrize("endpoint", [_CHAT, _TEXT, _RESPONSES])
def test_each_line_is_answered_in_the_format_of_its_endpoint(endpoint: str) -> None:
    async def play(api: FakeApi) -> None:
        path = await _batch(api, endpoint, _BODIES[endpoint], _BODIES[endpoint])
        jobs = [answer(api, f"answer {n}") for n in range(2)]
        results = await _results(api, path, "output")
        bodies = [one["response"]["body"] for one in results]
        for n, body in enumerate(bodies):
            _SHAPES[endpoint].model_validate(body, strict=True)
            assert body["id"].endswith(jobs[n].removeprefix("job-"))
            assert f"answer {n}" in json.dumps(body)
            assert body["model"] == "m"
        (listed,) = (await api.json("GET", "/v1/batches"))["data"]
        assert listed["endpoint"] == endpoint
        assert listed["request_counts"] == {"total": 2, "completed": 2, "failed": 0}

    scenario(play)


def test_response_of_a_line_is_found_like_any_other() -> None:
    async def play(api: FakeApi) -> None:
        path = await _batch(api, _RESPONSES, _BODIES[_RESPONSES])
        answer(api, "Hello")
        (line,) = await _results(api, path, "output")
        body = line["response"]["body"]
        assert body["metadata"] == {"of": "me"}
        assert await api.json("GET", f"{_RESPONSES}/{body['id']}") == body

    scenario(play)


@pytest.mark.parametrize(
    ("endpoint", "fields", "message"),
    [
        (_CHAT, {"n": 2}, "n: a line of a batch has one answer"),
        (_TEXT, {"n": 2}, "n: a line of a batch has one answer"),
        (_TEXT, {"prompt": ["a", "b"]}, "prompt: a line of a batch has one answer"),
        (_TEXT, {"best_of": 2}, "best_of: "),
        (_TEXT, {"stream": True}, "stream: the answers of a batch cannot be streamed"),
        (_RESPONSES, {"background": True}, "background: "),
        (_RESPONSES, {"previous_response_id": "resp_1"}, "previous_response_id: "),
        (_RESPONSES, {"conversation": "conv_1"}, "conversation: "),
        (
            _RESPONSES,
            {"input": [{"type": "item_reference", "id": "msg_1"}]},
            "input.0: a line of a batch stands by itself",
        ),
        (_RESPONSES, {"stream": True}, "stream: "),
    ],
)
def test_invalid_line_fails_alone(endpoint: str, fields: dict[str, Any], message: str) -> None:
    async def play(api: FakeApi) -> None:
        good = _BODIES[endpoint]
        path = await _batch(api, endpoint, good | fields, good)
        answer(api, "Hello")
        (wrong,) = await _results(api, path, "error")
        assert wrong["custom_id"] == "l0"
        assert wrong["response"]["status_code"] == 400
        assert wrong["response"]["body"]["error"]["message"].startswith(message)
        (right,) = await _results(api, path, "output")
        assert right["custom_id"] == "l1"

    scenario(play)


@pytest.mark.parametrize("endpoint", [_CHAT, _TEXT, _RESPONSES])
def test_a_result_and_a_job_name_what_of_the_line_has_no_effect(endpoint: str) -> None:
    async def play(api: FakeApi) -> None:
        path = await _batch(api, endpoint, _BODIES[endpoint] | {"mode1": "x"}, _BODIES[endpoint])
        jobs = [answer(api, "Hello") for _ in range(2)]
        warned, plain = await _results(api, path, "output")
        assert warned["warning"] == "fields without effect: mode1 (did you mean model?)"
        assert "warning" not in plain
        shown = [(await api.json("GET", f"/v1/jobs/{job}"))["warning"] for job in jobs]
        assert shown == [warned["warning"], None]

    scenario(play)


def test_line_that_demands_a_schema_that_cannot_be_kept_fails_alone() -> None:
    async def play(api: FakeApi) -> None:
        good = _BODIES[_CHAT]
        too_large = {"type": "integer", "multipleOf": MULTIPLE_MAX + 1}
        form = {"name": "a", "schema": too_large}
        formats = [
            {"type": "json_schema", "json_schema": form | {"strict": strict}}
            for strict in (True, False)
        ]
        path = await _batch(api, _CHAT, *(good | {"response_format": one} for one in formats))
        answer(api, "6")
        (wrong,) = await _results(api, path, "error")
        message = wrong["response"]["body"]["error"]["message"]
        assert message.startswith("the schema of the answer cannot be kept")
        (right,) = await _results(api, path, "output")
        assert right["warning"].startswith("schema of the answer: ")

    scenario(play)


def test_line_with_an_unknown_model_fails_alone_and_one_of_an_absent_model_waits() -> None:
    async def play(api: FakeApi) -> None:
        pulse = WorkerPulse(worker=WorkerId("w"), pid=1, state="ready", model=None, target="m")
        api.broker.pulses.beat(pulse)
        good = _BODIES[_CHAT]
        lines = [good | {"model": name} for name in ("nothing", "other", "m")]
        path = await _batch(api, _CHAT, *lines)
        answer(api, "Hello")
        advance(api.app)
        assert (await api.json("GET", path))["status"] == "in_progress"
        (parked,) = (await api.json("GET", "/v1/jobs?status=queued"))["data"]
        assert (parked["waiting_for"], parked["bound_model"]) == ("model", "other")
        await api.json("POST", f"/v1/jobs/{parked['id']}/cancel")
        wrong, cancelled = await _results(api, path, "error")
        assert (wrong["custom_id"], cancelled["custom_id"]) == ("l0", "l1")
        assert wrong["response"]["status_code"] == 404
        message = wrong["response"]["body"]["error"]["message"]
        assert message == "model nothing is not served here; there is: other"

    scenario(play)


def test_line_of_another_endpoint_fails_the_file() -> None:
    async def play(api: FakeApi) -> None:
        line = {"custom_id": "a", "method": "POST", "url": _CHAT, "body": _BODIES[_CHAT]}
        reply = await upload(api, json.dumps(line).encode())
        asked = {
            "input_file_id": json.loads(reply.body)["id"],
            "endpoint": _TEXT,
            "completion_window": "24h",
        }
        created = await api.json("POST", "/v1/batches", asked)
        advance(api.app)
        shown = await api.json("GET", f"/v1/batches/{created['id']}")
        assert (shown["status"], shown["errors"]["data"][0]["code"]) == (
            "failed",
            "mismatched_endpoint",
        )

    scenario(play)
