"""The cases of Open Responses' compliance test, against the models of its specification.

Each answer and each event is read by ``openresponses-types``, which the project generates from the
specification.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openresponses_types
import pytest
from openresponses_types import ResponseResource
from pydantic import BaseModel

from tests.support.models.tiny_vision import picture
from tests.support.polling import scaled
from tests.support.processes.service import Service
from tests.support.processes.two_models import seeing_service

WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "description": "Return the current weather of a place",
    "parameters": {
        "type": "object",
        "properties": {"location": {"type": "string", "description": "Town and country"}},
        "required": ["location"],
    },
}


def turn(role: str, content: Any) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": content}


TEXTS = {
    "basic": {"input": [turn("user", "Say hello in three words.")]},
    "system": {"input": [turn("system", "You are a pirate."), turn("user", "Say hello.")]},
    "tool": {"input": [turn("user", "What is the weather in Oslo?")], "tools": [WEATHER]},
    "turns": {
        "input": [
            turn("user", "My name is Ada."),
            turn("assistant", "Hello Ada! How can I help you?"),
            turn("user", "What is my name?"),
        ]
    },
}


def events_by_type() -> dict[str, type[BaseModel]]:
    """Return the models of the streaming events, by the only value of their type."""
    models = [getattr(openresponses_types, name) for name in dir(openresponses_types)]
    found: dict[str, type[BaseModel]] = {}
    for one in models:
        if isinstance(one, type) and issubclass(one, BaseModel) and "Streaming" in one.__name__:
            kind: Any = one.model_fields["type"].annotation
            found[next(iter(kind)).value] = one
    return found


def ask(service: Service, body: dict[str, Any], **more: Any) -> httpx.Response:
    body = {"model": "semantic-demo", "temperature": 0, "max_output_tokens": 60, **body, **more}
    reply = httpx.post(f"{service.base_url}/v1/responses", json=body, timeout=scaled(60))
    assert reply.status_code == 200, reply.text
    return reply


def events(reply: httpx.Response) -> list[dict[str, Any]]:
    """Return the events of a stream, each valid by the model of its type."""
    lines = [one.removeprefix("data: ") for one in reply.text.splitlines() if one[:6] == "data: "]
    found: list[dict[str, Any]] = [json.loads(one) for one in lines if one != "[DONE]"]
    models = events_by_type()
    for one in found:
        models[one["type"]].model_validate(one)
    return found


@pytest.mark.parametrize("case", TEXTS)
def test_an_answer_is_a_response_of_the_specification(service: Service, case: str) -> None:
    answer = ResponseResource.model_validate(ask(service, TEXTS[case]).json())
    assert answer.status in {"completed", "incomplete"}
    kinds = {one.type for one in answer.output}
    assert "function_call" in kinds if case == "tool" else kinds == {"message"}


@pytest.mark.parametrize("case", ["basic", "tool"])
def test_each_event_of_a_stream_has_the_published_form(service: Service, case: str) -> None:
    found = events(ask(service, TEXTS[case], stream=True))
    last = ResponseResource.model_validate(found[-1]["response"])
    assert last.output
    kinds = {one["type"] for one in found}
    assert {"response.created", "response.in_progress", "response.output_item.done"} <= kinds
    if case == "tool":
        assert "response.function_call_arguments.delta" in kinds
        assert "response.function_call_arguments.done" in kinds
    else:
        assert "response.output_text.delta" in kinds


def test_a_kept_response_has_its_end_and_what_it_was_drawn_with(service: Service) -> None:
    made = ask(service, TEXTS["basic"], temperature=0.25, presence_penalty=0.5).json()
    kept = httpx.get(f"{service.base_url}/v1/responses/{made['id']}", timeout=scaled(60)).json()
    ResponseResource.model_validate(kept)
    assert made["created_at"] <= kept["completed_at"]
    assert (kept["temperature"], kept["presence_penalty"], kept["top_p"]) == (0.25, 0.5, 1)


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    yield from seeing_service(tmp_path_factory.mktemp("seeing"))


@pytest.mark.nightly
def test_an_image_is_answered_about(seeing: Service) -> None:
    image = {"type": "input_image", "image_url": f"data:image/png;base64,{picture(5).data}"}
    content = [{"type": "input_text", "text": "What is on it?"}, image]
    reply = ask(seeing, {"model": "tiny-vl", "input": [turn("user", content)]})
    assert ResponseResource.model_validate(reply.json()).output
