"""A field that no dialect knows is accepted, and the reply names it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pytest

from api.dialects.openai_chat.bodies import ChatCompletionBody
from api.framework.answer import warning_header
from api.http.bodies import UNKNOWN_MAX, parse_body
from api.http.messages import Request
from tests.support.builders.api import fake_api
from tests.support.polling import eventually

_TURNS = [{"role": "user", "content": "hi"}]
_QUESTION = {"type": "predicate", "instructions": "It is short."}
_BODIES: Mapping[str, Mapping[str, Any]] = {
    "/v1/messages": {"max_tokens": 1, "messages": _TURNS},
    "/v1/chat/completions": {"messages": _TURNS},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/embeddings": {"input": "hi"},
    "/v1/rerank": {"query": "hi", "documents": ["one"]},
    "/v1/decisions": {"input": "hi", "questions": [_QUESTION]},
    "/api/chat": {"messages": _TURNS, "stream": False},
    "/api/generate": {"prompt": "hi", "stream": False},
    "/api/embed": {"input": "hi"},
    "/api/embeddings": {"prompt": "hi"},
    # These start no job.
    "/v1/messages/count_tokens": {"messages": _TURNS},
    "/v1/responses/input_tokens": {"input": "hi"},
    "/v1/conversations": {},
    "/tokenize": {"prompt": "hi"},
    "/detokenize": {"tokens": [1]},
    "/api/show": {},
    "/v1/messages/batches": {
        "requests": [{"custom_id": "a", "params": {"max_tokens": 1, "messages": _TURNS}}]
    },
}
#: Bodies without a model.
_MODEL: Mapping[str, Mapping[str, Any]] = {"/v1/conversations": {}, "/v1/messages/batches": {}}


def _warning(path: str, more: Mapping[str, Any]) -> str | None:
    async def scenario() -> str | None:
        async with fake_api() as api:
            request = Request(id="req-1", method="POST", path=path)
            body = {**_MODEL.get(path, {"model": "demo"}), **_BODIES[path], **more}
            handling = asyncio.ensure_future(api.send("POST", path, body, request=request))
            await eventually(lambda: bool(request.marks.jobs) or handling.done())
            handling.cancel()
            with suppress(asyncio.CancelledError):
                await handling
            return warning_header(request).get("x-semantic-warning")

    return asyncio.run(scenario())


@pytest.mark.parametrize("path", _BODIES)
def test_an_unknown_field_is_named(path: str) -> None:
    assert _warning(path, {"safeguards": 1}) == "fields without effect: safeguards"


@pytest.mark.parametrize("path", _BODIES)
def test_a_body_of_known_fields_has_no_warning(path: str) -> None:
    assert _warning(path, {}) is None


@pytest.mark.parametrize(
    ("path", "more", "named"),
    [
        ("/v1/messages", {"mode": "x"}, "mode (did you mean model?)"),
        (
            "/v1/messages",
            {"thinking": {"type": "disabled", "budget_token": 5}},
            "thinking.budget_token (did you mean thinking.budget_tokens?)",
        ),
        (
            "/api/chat",
            {"options": {"num_predic": 5, "num_ctx": 4096}},
            "options.num_predic (did you mean options.num_predict?), options.num_ctx",
        ),
    ],
)
def test_a_field_inside_an_object_is_named_with_its_place(
    path: str, more: Mapping[str, Any], named: str
) -> None:
    assert _warning(path, more) == f"fields without effect: {named}"


def test_of_many_unknown_fields_the_first_ones_are_named() -> None:
    fields = {f"x{number}": 1 for number in range(100_000)}
    body = json.dumps({"model": "m", "messages": _TURNS} | fields).encode()
    assert parse_body(ChatCompletionBody, body).unknown == tuple(list(fields)[:UNKNOWN_MAX])
