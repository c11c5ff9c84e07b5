"""Decisions: questions about one input, answered by the probabilities of labels."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import Decision

from api.dialects.decisions import option_chances
from api.generation import AssembledAnswer, Block
from api.http.messages import Reply
from domain.chat.items import Finished, Started, Text
from domain.chat.logprobs import Alternative, TokenLogprob
from domain.chat.request import ChatRequest
from domain.values import Digest, JobId, StopReason
from tests.support.builders.api import FakeApi, fake_api
from tests.support.builders.generation_requests import USAGE
from tests.support.polling import eventually

PATH = "/v1/decisions"
_CHOICES = [{"value": "cat"}, {"value": True, "description": "anything that is true"}]
_LEVELS = [{"label": "dull"}, {"label": "fair"}, {"label": "bright"}]
_QUESTIONS: list[dict[str, Any]] = [
    {"type": "predicate", "instructions": "It is an animal.", "name": "animal"},
    {"type": "choice", "instructions": "What is it?", "choices": _CHOICES},
    {"type": "score", "instructions": "How bright is it?", "levels": _LEVELS, "name": "light"},
    {"type": "predicate", "instructions": "Unanswered.", "name": "open"},
]


def _token(chances: dict[str, float]) -> TokenLogprob:
    top = tuple(Alternative(word.encode(), math.log(chance)) for word, chance in chances.items())
    return TokenLogprob(index=0, token=top[0][0], logprob=top[0][1], top=top)


_TOKENS = [
    _token({" Yes": 0.5, "yes": 0.1, "No": 0.2, "Maybe": 0.1}),
    _token({"B": 0.6, " A": 0.2, "C": 0.1}),
    _token({"C.": 0.4, "A": 0.4}),
    _token({"Perhaps": 0.999}),
]


async def _prompts(api: FakeApi, body: dict[str, Any], count: int) -> tuple[Any, list[ChatRequest]]:
    asking = asyncio.create_task(api.send("POST", PATH, body))
    # The first one alone, then all others at once.
    for _ in range(count):
        job_id = await eventually(api.take)
        token = next(
            token
            for question, token in zip(_QUESTIONS, _TOKENS, strict=True)
            if count == 1 or question["instructions"] in _prompt(api, job_id).messages[-1].content
        )
        api.begin(job_id)
        end = Finished(stop_reason=StopReason.END_TURN, usage=USAGE)
        text = Text(text="x", ids=(1,), logprobs=(token,))
        api.publish(job_id, Started(prompt_tokens=5, cached_tokens=2), text, end)
        api.complete(job_id, "x")
    reply = await asking
    assert isinstance(reply, Reply)
    asked = [JobId(one) for one in reply.headers["x-semantic-job"].split(", ")]
    return json.loads(reply.body), [_prompt(api, job_id) for job_id in asked]


def _prompt(api: FakeApi, job_id: JobId) -> ChatRequest:
    request = api.log.views.rows[job_id].submitted.request
    return ChatRequest.from_bytes(api.log.get(Digest(request)))


def test_each_question_is_answered_by_the_probabilities_of_its_labels() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            body = {"model": "m", "input": "A cat.", "questions": _QUESTIONS}
            made, chats = await _prompts(api, body, 4)
            Decision.model_validate(made)
            yes, kind, light, none = made["answers"]
            assert yes["name"] == "animal"
            assert yes["probability"] == pytest.approx(0.75)
            assert kind["choice"] is True
            assert [one["value"] for one in kind["probabilities"]] == ["cat", True]
            assert kind["confidence"] == pytest.approx(0.75)
            assert (light["name"], light["score"]) == ("light", pytest.approx(1.0))
            assert [one["value"] for one in light["probabilities"]] == [0, 1, 2]
            assert none == {"type": "refusal", "name": "open"}
            assert made["usage"]["input_tokens"] == 4 * USAGE.prompt_tokens
            texts = [chat.messages[-1].content for chat in chats]
            assert all(text.startswith("A cat.") for text in texts)
            assert "B. true: anything that is true" in texts[1]
            assert "C. bright" in texts[2]
            assert {chat.logprobs for chat in chats} == {20}

    asyncio.run(scenario())


def test_parts_of_the_input_and_of_a_question_stand_in_the_prompt() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            items = [
                {"role": "developer", "content": [{"type": "input_text", "text": "Be strict."}]},
                {"role": "user", "content": [{"type": "input_json", "data": {"price": 3}}]},
                {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
                {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c", "output": "Wood."},
            ]
            asked = [{"type": "input_text", "text": "It is"}, {"type": "input_json", "data": []}]
            question = {"type": "predicate", "instructions": asked}
            body = {"model": "m", "input": items, "questions": [question]}
            _, (chat,) = await _prompts(api, body | {"prompt_cache_key": "files"}, 1)
            words = "\n".join(turn.content for turn in chat.messages)
            for text in ("Be strict.", '{"price": 3}', "No.", "Wood.", "It is", "[]"):
                assert text in words
            (submitted,) = api.log.read_all(types=["JobSubmitted"])
            assert submitted.data["agent"] == "files"

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"questions": []}, "questions"),
        ({"questions": [{"type": "rank", "instructions": "x"}]}, "questions.0"),
        ({"questions": [{"type": "choice", "instructions": "x", "choices": []}]}, "choices"),
        (
            {
                "questions": [
                    {"type": "score", "instructions": "x", "levels": [{"label": "a"}] * 21}
                ]
            },
            "levels",
        ),
        ({"input": []}, "input"),
        ({"input": [{"type": "web_search_call"}]}, "input.0"),
    ],
)
def test_what_cannot_be_asked_is_named(changed: dict[str, Any], named: str) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            body = {"model": "m", "input": "x", "questions": _QUESTIONS} | changed
            reply = await api.json("POST", PATH, body, status=400)
            assert named in json.dumps(reply["error"])

    asyncio.run(scenario())


@given(
    st.dictionaries(
        st.text("abYyesnoN .", min_size=1, max_size=4), st.floats(0.001, 0.05), max_size=20
    )
)
def test_chances_of_labels_are_shares_of_one(words: dict[str, float]) -> None:
    answer = AssembledAnswer(blocks=[Block(kind="text", logprobs=[_token(words | {"yes": 0.01})])])
    for labels in (("yes", "no"), ("a", "b")):
        chances = option_chances(answer, labels)
        if chances is not None:
            assert math.isclose(sum(chances), 1.0)
            assert all(0 <= chance <= 1 for chance in chances)
