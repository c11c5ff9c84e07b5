"""Likelihoods by the official SDK, unmodified and with strict response validation."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import httpx2
import openai
import pytest
from openai.types.chat import ChatCompletionTokenLogprob
from openai.types.responses import Response, ResponseOutputMessage, ResponseOutputText

from tests.support.polling import scaled
from tests.support.processes.service import Service

ASK: dict[str, Any] = {
    "model": "semantic-demo",
    "max_tokens": 64,
    "temperature": 0,
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
}
#: What a prompt that is computed, and one whose beginning is cached, may differ by.
BOUND = 0.01


def spelled(told: list[ChatCompletionTokenLogprob]) -> str:
    return bytes(octet for one in told for octet in one.bytes or ()).decode()


def test_chat_tells_how_likely_each_token_was(oai: openai.OpenAI) -> None:
    reply = oai.chat.completions.create(**ASK, logprobs=True, top_logprobs=5)
    choice = reply.choices[0]
    assert choice.logprobs is not None
    told = choice.logprobs.content
    assert told
    assert spelled(told) == choice.message.content
    for one in told:
        assert len(one.top_logprobs) == 5
        # Greedy: nothing is likelier than what was said.
        assert one.logprob == one.top_logprobs[0].logprob <= 0


def test_chat_stream_tells_the_same_piece_by_piece(oai: openai.OpenAI) -> None:
    whole = oai.chat.completions.create(**ASK, logprobs=True, top_logprobs=2).choices[0]
    with oai.chat.completions.stream(**ASK, logprobs=True, top_logprobs=2) as stream:
        for event in stream:
            if event.type == "chunk" and event.chunk.choices:
                choice = event.chunk.choices[0]
                assert bool(choice.logprobs) == bool(choice.delta.content)
        final = stream.get_final_completion().choices[0]
    assert final.message.content == whole.message.content
    assert final.logprobs is not None
    assert whole.logprobs is not None
    streamed, told = final.logprobs.content or [], whole.logprobs.content or []
    assert [one.token for one in streamed] == [one.token for one in told]
    for one, other in zip(streamed, told, strict=True):
        assert one.logprob == pytest.approx(other.logprob, abs=BOUND)


def test_an_answer_that_is_held_to_a_form_tells_them_too(oai: openai.OpenAI) -> None:
    schema: dict[str, object] = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 12}},
    }
    reply = oai.chat.completions.create(
        **ASK,
        logprobs=True,
        response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": schema}},
    )
    choice = reply.choices[0]
    assert choice.logprobs is not None
    told = choice.logprobs.content
    assert told
    assert spelled(told) == choice.message.content
    assert all(one.top_logprobs == [] for one in told)


def test_other_requests_get_no_values_and_wrong_wishes_are_refused(oai: openai.OpenAI) -> None:
    assert oai.chat.completions.create(**ASK).choices[0].logprobs is None
    for wrong in ({"logprobs": True, "top_logprobs": 21}, {"top_logprobs": 2}):
        with pytest.raises(openai.BadRequestError) as refusal:
            oai.chat.completions.create(**ASK, **wrong)  # type: ignore[call-overload]
        assert refusal.value.param == "top_logprobs"


def test_the_job_keeps_them(oai: openai.OpenAI, service: Service) -> None:
    reply = oai.chat.completions.create(**ASK, logprobs=True, top_logprobs=1)
    job_id = reply.id.replace("chatcmpl-", "job-")
    job = httpx2.get(f"{service.base_url}/v1/jobs/{job_id}", timeout=scaled(60)).json()
    logprobs = reply.choices[0].logprobs
    assert logprobs is not None
    assert job["output"]["logprobs"] == [one.model_dump() for one in logprobs.content or ()]


INPUT: dict[str, Any] = {
    "model": "semantic-demo",
    "temperature": 0,
    "input": "What is the capital of France?",
    "include": ["message.output_text.logprobs"],
    "top_logprobs": 2,
}


def text_of(response: Response) -> ResponseOutputText:
    (message,) = response.output
    assert isinstance(message, ResponseOutputMessage)
    (part,) = message.content
    assert isinstance(part, ResponseOutputText)
    return part


def test_response_tells_them_whole_in_events_and_when_it_is_looked_up(oai: openai.OpenAI) -> None:
    with oai.responses.stream(**INPUT) as stream:
        deltas = [e for e in stream if e.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert final.top_logprobs == 2
    part = text_of(final)
    told = part.logprobs or []
    assert bytes(octet for one in told for octet in one.bytes).decode() == part.text
    assert all(len(one.top_logprobs) == 2 for one in told)
    assert [one.token for e in deltas for one in e.logprobs] == [one.token for one in told]
    later = oai.responses.retrieve(final.id)
    assert text_of(later).model_dump() == part.model_dump(exclude={"parsed"})


def test_other_responses_have_no_values(oai: openai.OpenAI) -> None:
    response = oai.responses.create(**INPUT | {"include": []})
    assert text_of(response).logprobs == []


def test_completion_of_a_text_tells_them(oai: openai.OpenAI) -> None:
    reply = oai.completions.create(
        model="semantic-demo", prompt="Once upon a", max_tokens=12, temperature=0, logprobs=3, n=2
    )
    for choice in reply.choices:
        told = choice.logprobs
        assert told is not None
        assert "".join(told.tokens or ()) == choice.text
        places = [*(told.text_offset or ()), len(choice.text)]
        assert [choice.text[a:b] for a, b in pairwise(places)] == told.tokens
        for token, logprob, top in zip(
            told.tokens or (), told.token_logprobs or (), told.top_logprobs or (), strict=True
        ):
            assert top[token] == logprob == max(top.values())
            assert len(top) == 3
    with pytest.raises(openai.BadRequestError) as refusal:
        oai.completions.create(model="semantic-demo", prompt="Once", logprobs=6)
    assert refusal.value.param == "logprobs"


def _echoed(oai: openai.OpenAI, prompt: str, max_tokens: int) -> dict[str, Any]:
    """Return the choice of an echoed prompt.

    Read without the SDK's models, which refuse the first ``null`` that the vendor sends too.
    """
    body = {"model": "semantic-demo", "temperature": 0, "logprobs": 2, "max_tokens": max_tokens}
    reply: Any = oai.post(
        "/completions", body=body | {"prompt": prompt, "echo": True}, cast_to=object
    )
    choice: dict[str, Any] = reply["choices"][0]
    return choice


@pytest.mark.parametrize("max_tokens", [0, 4])
def test_echoed_text_has_those_of_its_prompt(oai: openai.OpenAI, max_tokens: int) -> None:
    text = "Once upon a time there was"
    choice = _echoed(oai, text, max_tokens)
    assert choice["text"].startswith(text)
    assert (choice["text"] == text) == (max_tokens == 0)
    logprobs = choice["logprobs"]
    places = [*logprobs["text_offset"], len(choice["text"])]
    assert [choice["text"][a:b] for a, b in pairwise(places)] == logprobs["tokens"]
    assert (logprobs["token_logprobs"][0], logprobs["top_logprobs"][0]) == (None, None)
    assert all(value <= 0 for value in logprobs["token_logprobs"][1:])
    # What follows a prompt has the values that it has within a longer prompt.
    drawn = _echoed(oai, text, 1)
    longer = _echoed(oai, drawn["text"], 0)["logprobs"]
    read = dict(zip(longer["text_offset"], longer["token_logprobs"], strict=True))
    shorter = dict(
        zip(drawn["logprobs"]["text_offset"], drawn["logprobs"]["token_logprobs"], strict=True)
    )
    assert {place: read[place] for place in shorter if place} == pytest.approx(
        {place: value for place, value in shorter.items() if place}, abs=BOUND
    )
