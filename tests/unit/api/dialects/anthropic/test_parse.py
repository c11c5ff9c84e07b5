from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from api.dialects.anthropic.parse import parse
from api.dialects.parsing import IMAGE_UNSENT
from api.generation import RequestDefaults, origin_of
from api.http.bodies import MAX_TOKENS_CEILING
from domain.chat.request import ChatRequest, Message, ToolCall, unattributed
from domain.errors import InvalidRequest
from domain.values import SEED_MAX
from tests.support.fakes.time import SequentialIds

_TOOL = {
    "name": "Bash",
    "description": "Run a command",
    "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}},
}


def _body(**changes: Any) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": "my-model",
        "max_tokens": 100,
        "messages": [{"role": "user", "content": "hi"}],
    }
    return {key: value for key, value in (body | changes).items() if value is not ...}


def _chat(**changes: Any) -> ChatRequest:
    return parse(
        json.dumps(_body(**changes)).encode(),
        {},
        RequestDefaults(ids=SequentialIds(), max_tokens=1),
    ).chat


def test_smallest_body_gets_defaults_and_a_drawn_seed() -> None:
    chat = _chat()
    assert chat.messages == (Message(role="user", content="hi"),)
    assert (chat.model, chat.max_tokens, chat.stop, chat.tools) == ("my-model", 100, (), ())
    assert chat.sampling.temperature is None
    assert chat.sampling.seed == 1
    assert not chat.thinking


CODING_TURN = {
    "model": "my-model",
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "<reminder>be brief</reminder>"},
                {"type": "text", "text": "list the files"},
            ],
        },
        {"role": "system", "content": "The date is today."},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "I should look.", "signature": "abc-0"},
                {"type": "text", "text": "Looking."},
                {"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "ls"}},
                {"type": "tool_use", "id": "t2", "name": "Bash", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "t2",
                    "content": [
                        {"type": "text", "text": "a.py"},
                        {"type": "image", "source": {"type": "base64", "data": "AAAA"}},
                    ],
                },
                {"type": "tool_result", "tool_use_id": "t1", "content": "b.py"},
                {
                    "type": "text",
                    "text": "go on",
                    "cache_control": {"type": "ephemeral"},
                },
            ],
        },
    ],
    "system": [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=1.2; cch=0a1b2;"},
        {"type": "text", "text": "You help.", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "Be exact."},
    ],
    "tools": [
        _TOOL,
        _TOOL | {"name": "Later", "defer_loading": True},
    ],
    "metadata": {"user_id": '{"device_id":"x","account_uuid":"","session_id":"y"}'},
    "max_tokens": 32000,
    "thinking": {"type": "adaptive", "display": "omitted"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "safeguards": [{"type": "dangerous_tool_use", "classifier_context": {}}],
    "output_config": {"effort": "high"},
    "stream": True,
}


def test_turn_of_a_coding_client_is_taken_whole() -> None:
    headers = {
        "x-claude-code-session-id": "7e0c5a52-0000-4000-8000-000000000000",
        "anthropic-beta": "a-beta-of-next-year",
    }
    parsed = parse(
        json.dumps(CODING_TURN).encode(),
        headers,
        RequestDefaults(ids=SequentialIds(), max_tokens=1),
    )
    assert parsed.stream
    assert parsed.agent == "7e0c5a52-0000-4000-8000-000000000000"
    assert parsed.chat.thinking
    assert [tool["function"]["name"] for tool in parsed.chat.tools] == ["Bash"]
    assert parsed.chat.tools[0]["function"]["parameters"] == _TOOL["input_schema"]
    assert parsed.chat.messages == (
        Message(role="system", content="You help.\n\nBe exact."),
        Message(
            role="user",
            content="<system-reminder>\nThe date is today.\n</system-reminder>\n\n"
            "<reminder>be brief</reminder>\nlist the files",
        ),
        Message(
            role="assistant",
            content="Looking.",
            reasoning="I should look.",
            tool_calls=(
                ToolCall(id="t1", name="Bash", arguments={"command": "ls"}),
                ToolCall(id="t2", name="Bash", arguments={}),
            ),
        ),
        Message(role="tool", content=f"a.py\n{IMAGE_UNSENT}", tool_call_id="t2"),
        Message(role="tool", content="b.py", tool_call_id="t1"),
        Message(role="user", content="go on"),
    )


def test_text_and_list_of_one_text_are_the_same_request() -> None:
    block = [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]
    plain = _chat(system="be kind")
    blocks = _chat(
        system=[{"type": "text", "text": "be kind"}],
        messages=[{"role": "user", "content": block}],
    )
    assert plain.to_bytes() == blocks.to_bytes()


def test_billing_line_is_dropped_from_a_plain_system_text() -> None:
    system = "x-anthropic-billing-header: cc_version=9;\nYou help."
    assert _chat(system=system).messages[0] == Message(role="system", content="You help.")


def test_a_count_of_tokens_left_is_dropped_if_it_has_just_that_shape() -> None:
    def talk(count: str) -> tuple[Message, ...]:
        turns = [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "Hello."},
            {"role": "user", "content": "bye"},
            {"role": "system", "content": f"<total_tokens>{count} tokens left</total_tokens>"},
        ]
        system = f"You help.\n<total_tokens>{count} tokens left</total_tokens>"
        return _chat(system=system, messages=turns).messages

    assert talk("987654") == talk("12,345")
    assert [turn.content for turn in talk("1")] == ["You help.", "hi", "Hello.", "bye"]
    assert "many tokens left" in talk("many")[-1].content


@pytest.mark.parametrize(
    ("ids", "origin"),
    [
        ([f"toolu_{'ab' * 16}_0", f"toolu_{'ab' * 16}_1"], f"job-{'ab' * 16}"),
        ([f"s1.{'ab' * 16}-0.{'0' * 32}", "toolu_of_another_vendor"], f"job-{'ab' * 16}"),
        ([f"toolu_{'ab' * 16}_0", f"s1.{'cd' * 16}-0.{'0' * 32}"], ""),
        (["toolu_01A09q90qw90lq917835lq9", None, "", "s1.x", "abc-0"], ""),
    ],
)
def test_ids_name_the_answer_that_a_turn_echoes(ids: list[str | None], origin: str) -> None:
    assert origin_of(ids) == origin


def test_an_echoed_call_names_its_job_and_the_question_stays_the_same() -> None:
    def talk(call_id: str) -> ChatRequest:
        call = {"type": "tool_use", "id": call_id, "name": "Bash", "input": {}}
        turns = [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call_id}]},
        ]
        return _chat(messages=turns)

    echoed = talk(f"toolu_{'ab' * 16}_0")
    assert echoed.messages[1].origin == f"job-{'ab' * 16}"
    assert ChatRequest.from_bytes(echoed.to_bytes()) == echoed
    bare = replace(echoed, messages=unattributed(echoed.messages))
    asked = [one.asked(protocol="p", agent=None, seeded=True) for one in (echoed, bare)]
    assert asked[0] == asked[1]


def test_leading_system_turn_joins_the_system_prompt() -> None:
    messages = [{"role": "system", "content": "two"}, {"role": "user", "content": "hi"}]
    assert _chat(system="one", messages=messages).messages[0].content == "one\n\ntwo"


def test_neighbours_of_one_role_are_joined_and_a_prefill_stays_last() -> None:
    messages = [
        {"role": "user", "content": "a"},
        {"role": "user", "content": "b"},
        {"role": "assistant", "content": "{"},
    ]
    assert [(m.role, m.content) for m in _chat(messages=messages).messages] == [
        ("user", "a\n\nb"),
        ("assistant", "{"),
    ]


def test_system_alone_still_gives_the_template_a_user_turn() -> None:
    messages = [{"role": "system", "content": "only this"}]
    assert [m.role for m in _chat(messages=messages).messages] == ["system", "user"]


@pytest.mark.parametrize(
    "block",
    [
        {"type": "search_result", "source": "http://x", "title": "t", "content": []},
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "q"}},
        {"type": "web_search_tool_result", "tool_use_id": "s", "content": {"type": "error"}},
        {"type": "tool_reference", "tool_name": "Later"},
        {"type": "hologram", "beams": [1, 2, {"deep": None}]},
        {"type": "tool_result", "tool_use_id": "s"},
    ],
)
def test_block_of_any_type_is_accepted(block: dict[str, Any]) -> None:
    for role in ("user", "assistant"):
        assert _chat(messages=[{"role": role, "content": [block]}]).to_bytes()


def test_unknown_block_shows_the_text_it_has() -> None:
    block = {"type": "note_of_next_year", "content": [{"type": "text", "text": "read me"}]}
    assert _chat(messages=[{"role": "user", "content": [block]}]).messages[0].content == "read me"


def test_limits_and_sampling_are_passed_on() -> None:
    chat = _chat(
        max_tokens=10**30,
        temperature=0,
        top_p=0.5,
        top_k=40,
        stop_sequences=["a", "", "a"],
        seed=-1,
    )
    assert chat.max_tokens == MAX_TOKENS_CEILING
    assert chat.stop == ("a",)
    assert (chat.sampling.temperature, chat.sampling.top_p, chat.sampling.top_k) == (0.0, 0.5, 40)
    assert chat.sampling.seed == SEED_MAX


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"model": ...}, "model"),
        ({"model": ""}, "model"),
        ({"max_tokens": ...}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role"),
        (
            {"messages": [{"role": "user", "content": "x"}, {"role": "user"}]},
            "messages.1.content",
        ),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
        (
            {"messages": [{"role": "user", "content": [{"type": 5}]}]},
            "messages.0.content.0.type",
        ),
        ({"temperature": 1.5}, "temperature"),
        ({"top_p": -0.1}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"stop_sequences": "x"}, "stop_sequences"),
        ({"stop_sequences": ["x"] * 65}, "stop_sequences"),
        ({"stream": "yes"}, "stream"),
        ({"seed": 2**63}, "seed"),
        ({"thinking": {"budget_tokens": 5}}, "thinking.type"),
    ],
)
def test_wrong_field_is_named_as_the_caller_wrote_it(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        _chat(**changes)
    assert caught.value.field == field


def test_no_token_may_be_requested() -> None:
    assert _chat(max_tokens=0).max_tokens == 0


def test_body_that_is_no_object_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        parse(b"[]", {}, RequestDefaults(ids=SequentialIds(), max_tokens=1))
