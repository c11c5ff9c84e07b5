from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from openai.types import Completion

from api.protocols.answer import fold_answer
from api.protocols.openai_completions import CompletionEncoder, assemble_text, parse
from api.sse import Part, encode
from domain.chat import Message
from domain.errors import InvalidRequest
from domain.stream import StreamItem
from domain.values import JobId
from tests.support.fake_time import SequentialIds
from tests.support.item_strategies import item_streams
from tests.support.wire import events_in

_JOB = JobId("job-" + "cd" * 16)


def _parsed(**fields: Any) -> Any:
    body = json.dumps({"model": "m", "prompt": "Once"} | fields).encode()
    return parse(body, {}, ids=SequentialIds(), max_tokens_default=16)


@pytest.mark.parametrize("prompt", ["Once", ["Once"]])
def test_prompt_is_a_question(prompt: Any) -> None:
    parsed = _parsed(prompt=prompt, stop="END")
    assert parsed.chat.messages == (Message(role="user", content="Once"),)
    assert (parsed.chat.max_tokens, parsed.chat.stop) == (16, ("END",))


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"echo": True}, "echo"),
        ({"suffix": "end"}, "suffix"),
        ({"n": 2}, "n"),
        ({"best_of": 2}, "best_of"),
        ({"prompt": ["a", "b"]}, "prompt"),
    ],
)
def test_what_is_not_done_is_refused_by_name(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        _parsed(**fields)
    assert caught.value.field == field


@given(item_streams())
def test_stream_and_whole_answer_say_the_same(items: list[StreamItem]) -> None:
    encoder = CompletionEncoder(
        job_id=_JOB, model="m", created=17, include_usage=True, request_id="req_1"
    )
    parts: list[Part] = encoder.open()
    for item in items:
        parts += encoder.item(item)
    *chunks, usage, done = events_in(encode(parts))
    assert done.data == "[DONE]"
    whole = assemble_text(fold_answer(items), job_id=_JOB, model="m", created=17)
    assert Completion.model_validate(whole, strict=True)
    told = [chunk.json["choices"][0] for chunk in chunks]
    assert "".join(one["text"] for one in told) == whole["choices"][0]["text"]
    assert told[-1]["finish_reason"] == whole["choices"][0]["finish_reason"]
    assert usage.json["usage"] == whole["usage"]
