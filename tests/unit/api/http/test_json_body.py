from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.dialects.agents.bodies import AgentBody, TurnBody
from api.dialects.jobs.bodies import JobBody, JobForkBody
from api.http import bodies as json_body
from api.http.bodies import (
    BATCH,
    NESTING_MAX,
    REQUEST,
    JsonBounds,
    RequestBody,
    load_json,
    parse_body,
)
from domain.errors import InvalidRequest


@pytest.mark.parametrize(
    ("model", "body", "field", "nearest"),
    [
        (JobBody, {"prompt": "x", "agent": "a"}, "agent", "agent_id"),
        (JobBody, {"prompts": "x"}, "prompts", "prompt"),
        (JobBody, {"prompt": "x", "webhook": {"url": "u", "uri": "u"}}, "webhook.uri", "url"),
        (JobBody, {"prompt": "x", "unique": {"by": ["prompt"], "fort": 1}}, "unique.fort", "for"),
        (
            JobBody,
            {"prompt": "x", "after": [{"job": "job-" + "0" * 32, "conditions": "ended"}]},
            "after.0.conditions",
            "condition",
        ),
        (
            JobForkBody,
            {"at": 0, "sampling": {"temperatures": 1}},
            "sampling.temperatures",
            "temperature",
        ),
        (TurnBody, {"prompt": "x", "max_token": 1}, "max_token", "max_tokens"),
        (AgentBody, {"id": "a", "models": "m"}, "models", "model"),
    ],
)
def test_an_unknown_field_of_the_own_api_is_refused_with_the_nearest_one(
    model: type[RequestBody], body: dict[str, Any], field: str, nearest: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_body(model, json.dumps(body).encode())
    assert (refused.value.field, refused.value.message) == (
        field,
        f"there is no such field; did you mean {nearest}?",
    )


def test_an_unknown_field_that_is_like_no_other_comes_with_all_that_there_are() -> None:
    with pytest.raises(InvalidRequest, match="known are at, max_tokens, model, sampling"):
        parse_body(JobForkBody, b'{"at": 0, "zzzzzz": 1}')


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "not valid JSON"),
        (b'{"a": 1', "not valid JSON"),
        (b'{"a": "\xff"}', "not UTF-8"),
        (b"[NaN]", "NaN"),
        (b"[-Infinity]", "-Infinity"),
        (b"[1e400]", "too large"),
        (b"[" + b"9" * 5000 + b"]", "not valid JSON"),
        (b'{"a": 1, "a": 2}', "twice"),
        (b'{"\\ud800": 1, "\\ud800": 2}', "twice"),
        (b'["\\ud83d"]', "surrogate"),
        (b'{"\\uDE00": 1}', "surrogate"),
        (b"[" * (NESTING_MAX + 1) + b"]" * (NESTING_MAX + 1), "nested"),
        (b"[" * 49_000, "nested"),
        (b'{"a":' * 49_000, "nested"),
    ],
)
def test_unreadable_body_is_an_invalid_request_that_says_why(body: bytes, says: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        load_json(body)
    assert says in caught.value.message
    caught.value.message.encode()


def test_escaped_pair_and_deepest_nesting_pass() -> None:
    assert load_json(b'["\\ud83d\\ude00"]') == ["😀"]
    assert load_json(b"[" * NESTING_MAX + b"]" * NESTING_MAX)


@given(
    st.recursive(
        st.none() | st.integers() | st.text(alphabet='a"\\\\,:[]{}\n'),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(alphabet='a"\\\\,{'), inner),
    ),
    st.integers(1, 9),
)
def test_count_of_values_ignores_what_stands_in_texts(value: Any, slice_bytes: int) -> None:
    body = json.dumps(value, separators=(",", ":")).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_body, "_SLICE_BYTES", slice_bytes)
        found = b"".join(json_body._marks(body))
    assert found.count(b",") + found.count(b"[") + found.count(b"{") == marks_of(value)
    assert found.count(b"[") + found.count(b"{") == found.count(b"{") + lists_of(value)


def marks_of(value: Any) -> int:
    if not isinstance(value, list | dict):
        return 0
    children = list(value.values()) if isinstance(value, dict) else value
    return 1 + max(0, len(children) - 1) + sum(marks_of(child) for child in children)


def lists_of(value: Any) -> int:
    children = list(value.values()) if isinstance(value, dict) else value
    if not isinstance(value, list | dict):
        return 0
    return isinstance(value, list) + sum(lists_of(child) for child in children)


@pytest.mark.parametrize(
    "member", [b"[]", b"{}", b"0", b'""', b'{"k":0}', b"[0]", b'"\\",{"', b'"\\\\\\"["']
)
@pytest.mark.parametrize("bounds", [REQUEST, BATCH])
def test_too_many_values_are_refused_before_any_is_made(member: bytes, bounds: JsonBounds) -> None:
    # Of the parts of a batch, only objects may be more than in a request.
    smaller = replace(bounds, containers_max=min(bounds.containers_max, 60_000))
    body = b"[" + (member + b",") * REQUEST.values_max + member + b"]"
    with pytest.raises(InvalidRequest, match="more than"):
        load_json(body, smaller)


def test_request_of_many_token_ids_and_a_batch_of_many_lines_pass() -> None:
    ids = list(range(2**18))
    assert load_json(json.dumps(ids).encode()) == ids
    line = b'{"custom_id":"c","params":{"messages":[{"role":"user","content":"[,{"}]}}'
    batch = b'{"requests":[' + (line + b",") * 60_000 + line + b"]}"
    assert len(load_json(batch, BATCH)["requests"]) == 60_001
    with pytest.raises(InvalidRequest, match="arrays and objects"):
        load_json(batch)


@given(st.binary())
def test_any_bytes_give_a_value_or_an_invalid_request(body: bytes) -> None:
    try:
        value = load_json(body)
    except InvalidRequest:
        return
    assert json.loads(body) == value
