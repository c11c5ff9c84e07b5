"""OpenAI's Responses through the official SDK, unmodified and with strict response validation."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent

from tests.support.polling import scaled, wait_until
from tests.support.processes.service import Service

_MODEL = "semantic-demo"
_TOOL: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the weather of a city",
    "parameters": {
        "type": "object",
        "properties": {"location": {"type": "string"}},
        "required": ["location"],
    },
    "strict": False,
}
_PATIENCE_S = 120.0


def _wait(oai: openai.OpenAI, response: Response) -> Response:
    return wait_until(
        lambda: oai.responses.retrieve(response.id),
        lambda seen: seen.status not in {"queued", "in_progress"},
        within_s=_PATIENCE_S,
    )


def _known(response: Response) -> int:
    assert response.usage is not None
    return response.usage.input_tokens_details.cached_tokens


def _assert_goes_on(before: Response, after: Response) -> None:
    """Everything that was read and said before is known; the last token was never read."""
    assert before.usage is not None
    said = before.usage.input_tokens + before.usage.output_tokens
    assert _known(after) >= said - 2, (before.usage, after.usage)


def test_answer_comes_whole_and_is_looked_up(oai: openai.OpenAI) -> None:
    made = oai.responses.create(
        model=_MODEL,
        input="What is the capital of France?",
        temperature=0,
        max_output_tokens=64,
        metadata={"of": "me"},
    )
    assert "Paris" in made.output_text
    assert (made.status, made.metadata) == ("completed", {"of": "me"})
    assert oai.responses.retrieve(made.id).model_dump() == made.model_dump()
    (item,) = oai.responses.input_items.list(made.id)
    assert item.type == "message"
    oai.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        oai.responses.retrieve(made.id)
    with pytest.raises(openai.BadRequestError, match="previous response"):
        oai.responses.create(model=_MODEL, input="And?", previous_response_id=made.id)


def test_stream_helper_puts_calls_and_texts_together(oai: openai.OpenAI) -> None:
    with oai.responses.stream(
        model=_MODEL,
        input="What is the weather in Paris?",
        tools=[_TOOL],
        temperature=0,
        max_output_tokens=80,
    ) as stream:
        pieces = [
            event.delta
            for event in stream
            if event.type == "response.function_call_arguments.delta"
        ]
        first = stream.get_final_response()
    (call,) = (item for item in first.output if item.type == "function_call")
    assert len(pieces) > 1
    assert "".join(pieces) == call.arguments
    assert list(json.loads(call.arguments)) == ["location"]
    result: Any = {
        "type": "function_call_output",
        "call_id": call.call_id,
        "output": "Sunny, 21 degrees.",
    }
    with oai.responses.stream(
        model=_MODEL,
        previous_response_id=first.id,
        input=[result],
        tools=[_TOOL],
        temperature=0,
        max_output_tokens=40,
    ) as stream:
        events = list(stream)
    _assert_goes_on(first, events[-1].response)  # type: ignore[union-attr]  # it is the last event


def test_text_of_a_custom_tool_is_held_to_its_grammar_and_goes_on(oai: openai.OpenAI) -> None:
    grammar = r"\*\*\* Begin\n\+[a-z]{3}\n(\+[a-z]{3}\n)?\*\*\* End\n"
    patch: Any = {
        "type": "custom",
        "name": "apply_patch",
        "description": "Change a file.",
        "format": {"type": "grammar", "syntax": "regex", "definition": grammar},
    }
    asked: Any = {"model": _MODEL, "tools": [_TOOL, patch], "temperature": 0}
    with oai.responses.stream(
        **asked,
        input="What is the weather in Paris?",
        tool_choice={"type": "custom", "name": "apply_patch"},
        max_output_tokens=200,
    ) as stream:
        pieces = [
            event.delta for event in stream if event.type == "response.custom_tool_call_input.delta"
        ]
        first = stream.get_final_response()
    (call,) = (item for item in first.output if item.type == "custom_tool_call")
    assert re.fullmatch(grammar, call.input)
    assert len(pieces) > 1
    assert "".join(pieces) == call.input
    result: Any = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "Done."}
    allowed: Any = {"type": "allowed_tools", "mode": "required", "tools": [_TOOL]}
    second = oai.responses.create(
        **asked,
        input=[result],
        previous_response_id=first.id,
        tool_choice=allowed,
        max_output_tokens=80,
    )
    assert {item.type for item in second.output} == {"function_call"}
    _assert_goes_on(first, second)
    listed = list(oai.responses.input_items.list(second.id, order="asc"))
    assert [item.type for item in listed] == [
        "message", "custom_tool_call", "custom_tool_call_output",
    ]  # fmt: skip


def test_echoed_items_find_their_answer_without_a_session(oai: openai.OpenAI) -> None:
    asked: Any = [{"role": "user", "content": "What is the capital of France?"}]
    first = oai.responses.create(model=_MODEL, input=asked, store=False, max_output_tokens=64)
    echoed = [item.model_dump(exclude_none=True) for item in first.output]
    more: Any = [*asked, *echoed, {"role": "user", "content": "Say hello."}]
    second = oai.responses.create(model=_MODEL, input=more, store=False, max_output_tokens=16)
    _assert_goes_on(first, second)
    with pytest.raises(openai.NotFoundError):
        oai.responses.retrieve(first.id)


def test_background_is_polled_and_resumed(oai: openai.OpenAI) -> None:
    asked: Any = {"model": _MODEL, "input": "Tell me a story.", "background": True}
    first = oai.responses.create(**asked, max_output_tokens=24, stream=True)
    events: list[ResponseStreamEvent] = list(first)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events[:3]] == [
        "response.created", "response.queued", "response.in_progress",
    ]  # fmt: skip
    whole: Response = events[-1].response  # type: ignore[union-attr]  # it is the last event
    for after in (0, 5, len(events) - 2):
        again = oai.responses.retrieve(whole.id, stream=True, starting_after=after)
        assert [event.model_dump() for event in again] == [
            event.model_dump() for event in events[after + 1 :]
        ]
    made = oai.responses.create(**asked, max_output_tokens=8)
    assert _wait(oai, made).status in {"completed", "incomplete"}


def test_background_is_cancelled(endless: Service) -> None:
    with openai.OpenAI(
        base_url=f"{endless.base_url}/v1",
        api_key="local",
        max_retries=0,
        timeout=scaled(60),
        _strict_response_validation=True,
    ) as client:
        asked: Any = {"model": _MODEL, "input": "Tell me a story.", "background": True}
        long = client.responses.create(**asked, max_output_tokens=20_000)
        assert long.status in {"queued", "in_progress"}
        ended = client.responses.cancel(long.id)
        assert _wait(client, ended).status == "cancelled"


@pytest.fixture
def own_oai(mortal: Service) -> Iterator[tuple[Service, openai.OpenAI]]:
    with openai.OpenAI(
        base_url=f"{mortal.base_url}/v1",
        api_key="local",
        max_retries=4,
        timeout=scaled(60),
        _strict_response_validation=True,
    ) as client:
        yield mortal, client


def test_conversation_goes_on_after_a_restart(
    own_oai: tuple[Service, openai.OpenAI], pytestconfig: pytest.Config
) -> None:
    service, oai = own_oai
    first = oai.responses.create(
        model=_MODEL, input="What is the capital of France?", max_output_tokens=64
    )
    second = oai.responses.create(
        model=_MODEL, input="Say hello.", previous_response_id=first.id, max_output_tokens=64
    )
    _assert_goes_on(first, second)
    # By day test_agents.py restarts the whole service between turns.
    if pytestconfig.getoption("--nightly"):
        assert service.stop() == 0
        service.start()
    else:
        service.kill_part("api")
        service.wait_ready()
    assert oai.responses.retrieve(second.id).model_dump() == second.model_dump()
    third = oai.responses.create(
        model=_MODEL, input="Thanks.", previous_response_id=second.id, max_output_tokens=16
    )
    _assert_goes_on(second, third)
    listed = list(oai.responses.input_items.list(third.id, order="asc", limit=2))
    roles = [item.role for item in listed if item.type == "message"]
    assert roles == ["user", "assistant", "user", "assistant", "user"]


def test_a_conversation_is_compacted_and_goes_on(oai: openai.OpenAI) -> None:
    question: Any = {"role": "user", "content": "What is the capital of France?"}
    # The SDK's strict models of this reply have no messages of the user.
    with openai.OpenAI(base_url=oai.base_url, api_key=oai.api_key, max_retries=0) as lenient:
        raw = lenient.responses.with_raw_response.compact(model=_MODEL, input=[question])
        made = raw.parse()
    assert [item.type for item in made.output] == ["message", "compaction"]
    kept: Any = raw.http_response.json()["output"]
    after = oai.responses.create(
        model=_MODEL, input=[*kept, question], temperature=0, max_output_tokens=32
    )
    assert after.status in {"completed", "incomplete"}
    assert made.usage.output_tokens > 0
