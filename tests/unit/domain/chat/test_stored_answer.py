"""The bytes of stored answers, of this version and of older ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.chat.embedding import Vectors
from domain.chat.generation import EmittedCall, OutputRun
from domain.chat.items import Text, Thinking
from domain.chat.logprobs import Alternative, TokenLogprob
from domain.chat.request import canonical_json
from domain.chat.stored_answer import StoredAnswer
from domain.values import digest_of

CALL = EmittedCall(id="toolu_1", name="look", arguments='{"at": 1}', is_complete=True)
CUT = EmittedCall(id="toolu_2", name="écrire", arguments='{"te')
VALUE = TokenLogprob(0, b"H", -0.5, (Alternative(b"H", -0.5), Alternative(b"\xe2", -1.0)))

#: An answer to the bytes whose digest stands in logs.
PINNED = {
    "text": (
        StoredAnswer(text="Hé\n", token_ids=(1, 2)),
        '{"text":"Hé\\n","thinking":"","token_ids":[1,2],"tool_calls":[]}',
    ),
    "calls": (
        StoredAnswer(text="", thinking="hm", calls=(CALL, CUT), token_ids=()),
        (
            '{"text":"","thinking":"hm","token_ids":[],"tool_calls":['
            '{"arguments":"{\\"at\\": 1}","id":"toolu_1","is_complete":true,"name":"look"},'
            '{"arguments":"{\\"te","id":"toolu_2","is_complete":false,"name":"écrire"}]}'
        ),
    ),
    "logprobs": (
        StoredAnswer(text="H", token_ids=(7,), logprobs=(VALUE,)),
        (
            '{"logprobs":[[0,"H",-0.5,[["H",-0.5],[[226],-1.0]]]],'
            '"text":"H","thinking":"","token_ids":[7],"tool_calls":[]}'
        ),
    ),
    "vectors": (
        StoredAnswer(text="", token_ids=(), vectors=Vectors(dimensions=1, data=b"\0\0\x80?" * 2)),
        (
            '{"text":"","thinking":"","token_ids":[],"tool_calls":[],'
            '"vectors":{"data":"AACAPwAAgD8=","dimensions":1}}'
        ),
    ),
    "order": (
        StoredAnswer(
            text="Hello",
            thinking="hm",
            calls=(CALL,),
            token_ids=(7,),
            order=(
                OutputRun("text", 2),
                OutputRun("tool", 1),
                OutputRun("thinking", 2),
                OutputRun("text", 3),
            ),
        ),
        (
            '{"order":[["text",2,0],["tool",1,0],["thinking",2,0],["text",3,0]],'
            '"text":"Hello","thinking":"hm","token_ids":[7],"tool_calls":['
            '{"arguments":"{\\"at\\": 1}","id":"toolu_1","is_complete":true,"name":"look"}]}'
        ),
    ),
    "no logprobs of no text": (
        StoredAnswer(text="", token_ids=(7,), logprobs=()),
        '{"logprobs":[],"text":"","thinking":"","token_ids":[7],"tool_calls":[]}',
    ),
}


@pytest.mark.parametrize(("answer", "payload"), PINNED.values(), ids=PINNED)
def test_the_bytes_of_an_answer_never_change(answer: StoredAnswer, payload: str) -> None:
    assert answer.to_bytes().decode() == payload
    assert StoredAnswer.from_bytes(payload.encode()) == answer


def test_the_digest_of_an_answer_never_changes() -> None:
    digest = "sha256:95f052e5c7a66c7e9a2fae2acd60f096ee8d0585fe1b1834676b6ad2ad1b0f6b"
    assert digest_of(PINNED["calls"][0].to_bytes()) == digest


_TEXT = st.text(st.characters(codec=None))  # unpaired surrogates too
_CALLS = st.builds(EmittedCall, id=_TEXT, name=_TEXT, arguments=_TEXT, is_complete=st.booleans())
_LOGPROB = st.floats(max_value=0, allow_nan=False, allow_infinity=False)
_VALUES = st.builds(
    TokenLogprob,
    st.integers(0, 10**6),
    st.binary(max_size=6),
    _LOGPROB,
    st.lists(st.builds(Alternative, st.binary(max_size=6), _LOGPROB), max_size=3).map(tuple),
)
_RUNS = st.builds(
    OutputRun, st.sampled_from(["text", "thinking", "tool"]), st.integers(1, 9), st.integers(0, 9)
)
_ANSWERS = st.builds(
    StoredAnswer,
    text=_TEXT,
    thinking=_TEXT,
    calls=st.lists(_CALLS, max_size=3).map(tuple),
    token_ids=st.none() | st.lists(st.integers(0, 2**32 - 1)).map(tuple),
    logprobs=st.none() | st.lists(_VALUES, max_size=3).map(tuple),
    order=st.lists(_RUNS, max_size=3).map(tuple),
)


@given(answer=_ANSWERS)
def test_an_answer_survives_the_store(answer: StoredAnswer) -> None:
    payload = answer.to_bytes()
    assert StoredAnswer.from_bytes(payload) == answer
    assert StoredAnswer.from_bytes(payload).to_bytes() == payload


#: Payloads that lack keys, and one with an unknown key.
OTHER = {
    "no calls": (
        {"text": "Hi", "thinking": "", "token_ids": [1]},
        StoredAnswer(text="Hi", token_ids=(1,)),
    ),
    "no token ids": (
        {"text": "Hi", "thinking": "hm", "tool_calls": []},
        StoredAnswer(text="Hi", thinking="hm"),
    ),
    "calls without a mark": (
        {"text": "", "thinking": "", "tool_calls": [{"id": "a", "name": "f", "arguments": "{}"}]},
        StoredAnswer(
            text="", calls=(EmittedCall(id="a", name="f", arguments="{}", is_complete=True),)
        ),
    ),
    "no thinking": ({"text": "Hi", "token_ids": [1]}, StoredAnswer(text="Hi", token_ids=(1,))),
    "unknown keys": (
        {"text": "Hi", "thinking": "", "token_ids": [1], "tool_calls": [], "mood": "fine"},
        StoredAnswer(text="Hi", token_ids=(1,)),
    ),
}


@pytest.mark.parametrize(("stored", "answer"), OTHER.values(), ids=OTHER)
def test_other_shapes_are_read(stored: dict[str, object], answer: StoredAnswer) -> None:
    assert StoredAnswer.from_bytes(canonical_json(stored)) == answer


def test_parts_of_an_ordered_answer_are_in_its_order() -> None:
    answer = StoredAnswer(
        text="ab",
        thinking="hm",
        calls=(CALL, CUT),
        logprobs=(VALUE, VALUE),
        order=(
            OutputRun("text", 1, 1),
            OutputRun("tool", 1),
            OutputRun("thinking", 2),
            OutputRun("text", 1, 1),
            OutputRun("tool", 1),
        ),
    )
    assert list(answer.parts()) == [
        Text(text="a", ids=(), logprobs=(VALUE,)),
        CALL,
        Thinking(text="hm", ids=()),
        Text(text="b", ids=(), logprobs=(VALUE,)),
        CUT,
    ]


def test_parts_of_an_answer_without_an_order_are_reasoning_text_and_calls() -> None:
    answer = StoredAnswer(text="ab", thinking="hm", calls=(CALL, CUT))
    assert list(answer.parts()) == [
        Thinking(text="hm", ids=()),
        Text(text="ab", ids=()),
        CALL,
        CUT,
    ]
    assert list(StoredAnswer(text="").parts()) == []
