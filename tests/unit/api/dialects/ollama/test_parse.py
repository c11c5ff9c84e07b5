"""What becomes of the bodies of Ollama's generations."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from api.dialects.ollama.parse import UNLOAD_REFUSED, of_model, parse_chat, parse_generate
from api.dialects.parsing import IMAGE_UNSENT, RequestParser
from api.generation import ParsedRequest, RequestDefaults
from api.http.bodies import MAX_TOKENS_CEILING
from domain.chat.images import IMAGE_MARK, ChatImage
from domain.chat.request import ChatRequest, Message, RawPrompt, ToolCall
from domain.errors import InvalidRequest
from domain.model.registry import ModelEntry, ModelRegistry
from domain.values import SEED_MAX
from tests.support.fakes.time import SequentialIds

DEFAULTS = RequestDefaults(ids=SequentialIds(), max_tokens=777)
TURN = {"role": "user", "content": "hi"}
TOOL = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object", "properties": {}}},
}


def parsed(parse: RequestParser, body: dict[str, Any]) -> ParsedRequest:
    return parse(json.dumps({"model": "m"} | body).encode(), {}, DEFAULTS)


def chat(**body: Any) -> ChatRequest:
    return parsed(parse_chat, {"messages": [TURN]} | body).chat


def generate(**body: Any) -> ChatRequest:
    return parsed(parse_generate, body).chat


def refusal(parse: RequestParser, **body: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as refused:
        parsed(parse, body)
    return refused.value


def test_smallest_chat_is_a_stream_with_defaults() -> None:
    found = parsed(parse_chat, {"messages": [TURN]})
    assert found.chat.messages == (Message(role="user", content="hi"),)
    assert found.chat.max_tokens == 777
    assert found.chat.sampling.given() == {}
    assert found.stream
    assert not found.seeded
    assert not parsed(parse_chat, {"messages": [TURN], "stream": False}).stream


def test_a_prompt_is_a_turn_behind_its_system_text() -> None:
    assert generate(prompt="hi", system="Be brief.").messages == (
        Message(role="system", content="Be brief."),
        Message(role="user", content="hi"),
    )


def test_history_with_calls_and_thinking_is_taken_whole() -> None:
    call = {"function": {"name": "look", "arguments": {"at": "x"}}}
    other = {"function": {"name": "ask"}}
    turns = [
        {"role": "system", "content": "Be kind."},
        TURN | {"images": ["aGk="]},
        {"role": "assistant", "content": "", "thinking": "hm", "tool_calls": [call, other, call]},
        {"role": "tool", "tool_name": "ask", "content": "nothing"},
        {"role": "tool", "tool_name": "look", "content": "a tree"},
        {"role": "tool", "content": "a bird"},
        {"role": "user", "content": "And?"},
    ]
    system, first, answer, asked, looked, again, last = chat(messages=turns, tools=[TOOL]).messages
    assert (system.content, last.content) == ("Be kind.", "And?")
    assert first.content == f"hi\n{IMAGE_UNSENT}"
    assert answer.reasoning == "hm"
    assert answer.tool_calls == (
        ToolCall(id="call_2_0", name="look", arguments={"at": "x"}),
        ToolCall(id="call_2_1", name="ask", arguments={}),
        ToolCall(id="call_2_2", name="look", arguments={"at": "x"}),
    )
    assert (asked.tool_call_id, asked.content) == ("call_2_1", "nothing")
    assert (looked.tool_call_id, looked.content) == ("call_2_0", "a tree")
    assert (again.tool_call_id, again.content) == ("call_2_2", "a bird")


def test_an_id_of_a_call_names_its_answer() -> None:
    job = "0" * 32
    call = {"id": f"toolu_{job}_0", "function": {"name": "look", "arguments": {}}}
    turns = [
        TURN,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"toolu_{job}_0", "content": "a tree"},
        {"role": "tool", "tool_call_id": "other", "content": "a bird"},
    ]
    _, answer, result, stray = chat(messages=turns).messages
    assert answer.origin == f"job-{job}"
    assert result.tool_call_id == answer.tool_calls[0].id
    assert stray.tool_call_id == "other"


def test_tools_are_offered() -> None:
    assert [tool["function"]["name"] for tool in chat(tools=[TOOL]).tools] == ["look"]


def test_options_are_the_sampling() -> None:
    options = {
        "temperature": 0.5,
        "top_k": 20,
        "top_p": 0.9,
        "min_p": 0.1,
        "seed": 7,
        "num_predict": 5,
        "repeat_last_n": 33,
        "repeat_penalty": 1.2,
        "presence_penalty": 1.5,
        "frequency_penalty": 1,
        "stop": ["\n", "user:"],
    }
    for found in (chat(options=options), generate(prompt="hi", options=options)):
        assert found.max_tokens == 5
        assert found.stop == ("\n", "user:")
        assert found.sampling.seed == 7
        assert found.sampling.given() == {
            "temperature": 0.5,
            "top_k": 20,
            "top_p": 0.9,
            "min_p": 0.1,
            "repetition_penalty": 1.2,
            "repetition_context_size": 33,
            "presence_penalty": 1.5,
            "frequency_penalty": 1,
        }


@pytest.mark.parametrize("wanted", [-1, -2, 0])
def test_no_limit_is_the_ceiling(wanted: int) -> None:
    assert chat(options={"num_predict": wanted}).max_tokens == MAX_TOKENS_CEILING


def test_a_seed_of_minus_one_is_random() -> None:
    assert not parsed(parse_chat, {"messages": [TURN], "options": {"seed": -1}}).seeded
    assert parsed(parse_chat, {"messages": [TURN], "options": {"seed": 0}}).seeded


def test_options_of_the_loader_have_no_effect() -> None:
    loader = {"num_ctx": 1, "num_gpu": -1, "num_thread": 8, "use_mmap": True, "num_keep": 4}
    off = {"tfs_z": 1, "typical_p": 1.0, "mirostat": 0, "penalize_newline": True}
    assert chat(options=loader | off | {"seed": 1}) == chat(options={"seed": 1})


@pytest.mark.parametrize(
    ("format_", "schema"),
    [(None, None), ("", None), ("json", {}), ({"type": "object"}, {"type": "object"})],
    ids=str,
)
def test_format_is_the_schema_of_the_answer(format_: Any, schema: Any) -> None:
    assert chat(format=format_).answer_schema == schema
    assert generate(prompt="hi", format=format_).answer_schema == schema


@pytest.mark.parametrize(
    ("think", "thinking", "effort", "tokens"),
    [(None, False, None, None), (True, True, None, None), (False, False, None, 0),
     ("low", True, "low", None), ("max", True, "max", None)],
    ids=str,
)  # fmt: skip
def test_thinking_is_switched(
    think: Any, effort: str | None, tokens: int | None, *, thinking: bool
) -> None:
    for found in (chat(think=think), generate(prompt="hi", think=think)):
        limit = found.thinking_limit.tokens
        assert (found.thinking, found.effort, limit) == (thinking, effort, tokens)


def test_logprobs_are_asked_for() -> None:
    assert chat().logprobs is None
    assert chat(logprobs=True).logprobs == 0
    assert generate(prompt="hi", logprobs=True, top_logprobs=3).logprobs == 3


def test_a_raw_prompt_has_no_template() -> None:
    found = generate(prompt="[INST] hi [/INST]", raw=True)
    assert (found.messages, found.raw) == ((), RawPrompt(text="[INST] hi [/INST]"))
    assert generate(prompt="a", suffix="b").raw == RawPrompt(text="a", suffix="b")


@pytest.mark.parametrize("field", ["system", "format", "think"])
def test_what_a_raw_prompt_cannot_follow_is_refused(field: str) -> None:
    given = {"system": "x", "format": "json", "think": True}[field]
    assert refusal(parse_generate, prompt="a", raw=True, **{field: given}).field == field
    assert refusal(parse_generate, prompt="a", suffix="b", **{field: given}).field == field


def test_an_empty_request_loads_the_model() -> None:
    for found in (
        parsed(parse_chat, {}),
        parsed(parse_chat, {"messages": []}),
        parsed(parse_generate, {"keep_alive": "5m"}),
        parsed(parse_generate, {"prompt": "", "stream": True, "options": {"num_predict": 9}}),
    ):
        assert found.chat.max_tokens == 0
        assert found.chat.messages == (Message(role="user", content=""),)
        assert not found.stream


@pytest.mark.parametrize("kept", [0, 0.0, "0", "0s", "0m0s"])
def test_a_model_is_not_unloaded_by_a_client(kept: Any) -> None:
    for parse in (parse_chat, parse_generate):
        refused = refusal(parse, keep_alive=kept)
        assert (refused.field, refused.message) == ("keep_alive", UNLOAD_REFUSED)
    assert chat(keep_alive=kept, options={"seed": 1}) == chat(options={"seed": 1})


def test_images_stand_behind_the_text() -> None:
    data = base64.b64encode(b"\xff\xd8\xff a picture").decode()
    turns = [TURN | {"images": [data]}]
    for request in (chat(messages=turns), generate(prompt="hi", images=[data])):
        (message,) = request.messages
        assert message.content == f"hi\n{IMAGE_MARK}"
        assert message.images == (ChatImage(data),)


def test_images_of_no_known_format_in_the_question_are_refused() -> None:
    turns = [TURN, {"role": "assistant", "content": "ho"}, TURN | {"images": ["aGk="]}]
    for refused, field in (
        (refusal(parse_chat, messages=turns), "messages.2.images.0"),
        (refusal(parse_generate, prompt="hi", images=["aGk="]), "images.0"),
    ):
        assert refused.field == field
        assert refused.message.startswith("an image is a PNG, JPEG, GIF or WebP file")
    turns.append(TURN)
    assert IMAGE_UNSENT in chat(messages=turns).messages[-1].content


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"template": "{{ .Prompt }}"}, "template"),
        ({"context": [1, 2]}, "context"),
        ({"width": 64}, "width"),
        ({"format": "xml"}, "format"),
        ({"think": "a lot"}, "think"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"_debug_render_only": True}, "_debug_render_only"),
        ({"options": {"mirostat": 2}}, "options.mirostat"),
        ({"options": {"typical_p": 0.7}}, "options.typical_p"),
        ({"options": {"tfs_z": 0.5}}, "options.tfs_z"),
        ({"options": {"penalize_newline": False}}, "options.penalize_newline"),
        ({"options": {"top_p": 2}}, "options.top_p"),
    ],
    ids=str,
)
def test_what_cannot_be_followed_is_refused_by_name(body: dict[str, Any], field: str) -> None:
    assert refusal(parse_generate, prompt="hi", **body).field == field


def test_fields_that_clients_send_empty_are_absent() -> None:
    """Ollama's own Go client sends these in every request."""
    empty: dict[str, Any] = {
        "suffix": "",
        "system": "",
        "template": "",
        "context": [],
        "options": None,
    }
    assert generate(prompt="hi", **empty).messages == (Message(role="user", content="hi"),)


def test_the_tag_of_a_name_is_dropped_unless_it_belongs_to_the_name() -> None:
    entries = [ModelEntry(name="a", source=""), ModelEntry(name="b:latest", source="")]
    registry = ModelRegistry(entries, following=())

    def resolved(name: str) -> str:
        request = parsed(parse_generate, {"model": name, "prompt": "hi"})
        return of_model(request, registry).chat.model

    assert [resolved(name) for name in ("a", "a:latest", "b:latest", "c:latest", "a:7b")] == [
        "a", "a", "b:latest", "c", "a:7b",
    ]  # fmt: skip


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["role", "content", "name", "function"]), inner, max_size=3
        )
    ),
    max_leaves=8,
)
_turns = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "system", "tool"])},
        optional={
            "content": st.text(max_size=4),
            "tool_name": st.sampled_from(["a", "b"]),
            "tool_calls": st.lists(
                st.fixed_dictionaries(
                    {"function": st.fixed_dictionaries({"name": st.sampled_from(["a", "b"])})}
                ),
                max_size=3,
            ),
        },
    ),
    max_size=6,
)
_fields = ["format", "think", "options", "tools", "raw", "prompt", "suffix", "keep_alive", "stream"]
_bodies = st.builds(
    lambda turns, more: {"messages": turns, **more},
    _turns,
    st.dictionaries(st.sampled_from(_fields), _values, max_size=3),
)


@pytest.mark.parametrize("parse", [parse_chat, parse_generate])
@settings(max_examples=100, deadline=None)
@given(body=_bodies)
def test_any_json_is_a_valid_request_or_an_invalid_request(
    parse: RequestParser, body: dict[str, Any]
) -> None:
    try:
        found = parsed(parse, body).chat
    except InvalidRequest as error:
        error.message.encode()
        return
    assert (found.raw is None) == bool(found.messages)
    assert 0 <= found.sampling.seed <= SEED_MAX
    assert ChatRequest.from_bytes(found.to_bytes()) == found


@settings(max_examples=100, deadline=None)
@given(turns=_turns)
def test_no_call_has_two_results(turns: list[dict[str, Any]]) -> None:
    found = chat(messages=turns).messages
    answered = [turn.tool_call_id for turn in found if turn.tool_call_id is not None]
    assert len(answered) == len(set(answered))
