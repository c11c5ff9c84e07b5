"""Whatever JSON a stranger sends, it is a request or a typed refusal."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.dialects.anthropic import parse as anthropic
from api.dialects.anthropic.parse import DOCUMENT_REFUSED
from api.dialects.jobs import wire as native
from api.dialects.openai_chat import parse as openai_chat
from api.generation import RequestDefaults
from domain.chat.request import ChatRequest
from domain.errors import InvalidRequest
from domain.values import SEED_MAX
from tests.support.builders.body_schemas import body_validator
from tests.support.day_and_night import examples
from tests.support.fakes.time import SequentialIds

_IDS = SequentialIds()
_PARSERS: dict[str, Callable[[bytes], ChatRequest]] = {
    "anthropic": lambda body: (
        anthropic.parse(body, {}, RequestDefaults(ids=_IDS, max_tokens=1)).chat
    ),
    "openai": lambda body: (
        openai_chat.parse(body, {}, RequestDefaults(ids=_IDS, max_tokens=9)).chat
    ),
    "native": lambda body: (
        native.parse(body, {}, RequestDefaults(ids=_IDS, max_tokens=9, model="m")).chat
    ),
}

_SCHEMAS = {"anthropic": "MessagesBody", "openai": "ChatCompletionBody", "native": "JobBody"}

_scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["user", "assistant", "system", "tool", "text", "thinking", "tool_use"])
)
_keys = st.sampled_from(
    ["type", "text", "content", "input", "source", "data", "role", "name", "function", "id"]
) | st.text(max_size=4)
_values = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_keys, inner, max_size=4),
    max_leaves=12,
)
_block_types = ["text", "thinking", "tool_use", "tool_result", "image", "document", "other"]
_blocks = st.fixed_dictionaries(
    {"type": st.sampled_from(_block_types)},
    optional={
        "text": st.text(max_size=5),
        "thinking": st.text(max_size=5),
        "content": _values,
        "source": _values,
        "input": st.dictionaries(_keys, _values, max_size=2),
        "name": st.text(max_size=5),
    },
)
_messages = st.lists(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["user", "assistant", "system"]),
            "content": st.text(max_size=8) | st.lists(_blocks, max_size=3) | _values,
        }
    ),
    max_size=4,
)
_fields = [
    "max_tokens", "system", "stop", "stop_sequences", "stream", "temperature", "top_p", "top_k",
    "min_p", "seed", "tools", "thinking", "n", "prompt", "priority", "agent_id", "anything",
]  # fmt: skip
_bodies = st.builds(
    lambda base, extra: base | extra,
    st.fixed_dictionaries({"model": st.just("m"), "max_tokens": st.just(5), "messages": _messages}),
    st.dictionaries(st.sampled_from(_fields), _values, max_size=3),
)


@pytest.mark.parametrize("dialect", _PARSERS)
@examples(75, night=150)
@given(body=_bodies | _values)
def test_any_json_is_a_valid_request_or_an_invalid_request(dialect: str, body: Any) -> None:
    try:
        chat = _PARSERS[dialect](json.dumps(body).encode())
    except InvalidRequest as error:
        error.message.encode()
        return
    _check(chat)


@pytest.mark.parametrize("dialect", _PARSERS)
@examples(75, night=150)
@given(body=_bodies)
def test_what_is_accepted_is_what_the_published_schema_allows(
    dialect: str, body: dict[str, Any]
) -> None:
    text = json.dumps(body)
    try:
        _PARSERS[dialect](text.encode())
    except InvalidRequest as error:
        # Other tests check the rules that no schema can express: those of the JSON reader, and of
        # images and documents, which are refused in the newest question only.
        is_json = error.field is None and "JSON" in error.message
        if is_json or error.message == DOCUMENT_REFUSED or "image" in error.message:
            return
        accepted = False
    else:
        accepted = True
    assert body_validator(_SCHEMAS[dialect]).is_valid(json.loads(text)) == accepted


def _check(chat: ChatRequest) -> None:
    assert chat.messages
    assert chat.messages[-1].role != "system"
    assert all(message.role != "system" for message in chat.messages[1:])
    assert chat.max_tokens >= 0
    assert 0 <= chat.sampling.seed <= SEED_MAX
    assert chat.sampling.top_p is None or 0 <= chat.sampling.top_p <= 1
    assert chat.sampling.temperature is None or 0 <= chat.sampling.temperature <= 2
    assert all(chat.stop)
    assert ChatRequest.from_bytes(chat.to_bytes()) == chat
    chat.to_bytes().decode()
