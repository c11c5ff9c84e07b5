"""Batches of texts and of responses through the official SDK, the worker killed in the middle."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
from openai.types import Completion
from openai.types.responses import Response

from tests.e2e.sdks.test_batches import over, upload
from tests.support.polling import WITHIN_S, scaled, wait_until
from tests.support.processes.service import Service

LINES = 8
_BODIES: dict[str, Any] = {
    "/v1/completions": {"prompt": "Once upon a time", "max_tokens": 32},
    "/v1/responses": {"input": "Tell me a story.", "max_output_tokens": 32},
}
_SHAPES: dict[str, Any] = {"/v1/completions": Completion, "/v1/responses": Response}


def _submit(client: openai.OpenAI, endpoint: Any) -> str:
    body = {"model": "semantic-demo", "temperature": 0} | _BODIES[endpoint]
    lines = [
        {"custom_id": f"l{n}", "method": "POST", "url": endpoint, "body": body}
        for n in range(LINES)
    ]
    return client.batches.create(
        input_file_id=upload(client, lines), endpoint=endpoint, completion_window="24h"
    ).id


def _events(service: Service, query: str) -> list[dict[str, Any]]:
    url = f"{service.base_url}/v1/events?limit=100&{query}"
    found: list[dict[str, Any]] = httpx.get(url, timeout=scaled(WITHIN_S)).json()["data"]
    return found


def _said(endpoint: str, body: Any) -> str:
    whole = _SHAPES[endpoint].model_validate(body, strict=True)
    text: str = whole.output_text if endpoint == "/v1/responses" else whole.choices[0].text
    return text


def test_every_line_has_one_answer_in_its_own_form(mortal: Service) -> None:
    end = _events(mortal, f"before={2**31}")
    begin = end[0]["position"] if end else 0

    def completed() -> int:
        return len(_events(mortal, f"type=JobCompleted&after={begin}"))

    with openai.OpenAI(
        base_url=f"{mortal.base_url}/v1", api_key="x", _strict_response_validation=True
    ) as client:
        batches = {endpoint: _submit(client, endpoint) for endpoint in _BODIES}
        wait_until(completed, lambda count: count > LINES // 2)
        mortal.kill_part("worker")
        for endpoint, batch_id in batches.items():
            batch = over(client, batch_id)
            assert batch.status == "completed"
            assert batch.output_file_id is not None
            text = client.files.content(batch.output_file_id).text
            told = [json.loads(line) for line in text.splitlines()]
            assert [one["custom_id"] for one in told] == [f"l{n}" for n in range(LINES)]
            bodies = [one["response"]["body"] for one in told]
            assert len({body["id"] for body in bodies}) == LINES
            assert len({_said(endpoint, body) for body in bodies}) == 1
            if endpoint == "/v1/responses":
                assert client.responses.retrieve(bodies[0]["id"]).output_text
    assert completed() == 2 * LINES
