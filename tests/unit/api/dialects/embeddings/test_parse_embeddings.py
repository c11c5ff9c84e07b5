"""Whatever body a client sends to ``/v1/embeddings``, it is a request or a typed refusal."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from api.dialects.embeddings import parse
from domain.chat.request import ChatRequest
from domain.errors import InvalidRequest
from tests.support.builders.body_schemas import body_validator
from tests.support.day_and_night import examples

# Ids must be written as integers: 1.0 is refused, which a schema cannot say.
_fractions = st.floats().filter(lambda number: not number.is_integer())
_scalars = st.none() | st.booleans() | st.integers() | _fractions | st.text(max_size=4)
_values = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)
_ids = st.lists(st.integers(-1, 2**31), max_size=3)
_inputs = (
    st.text(max_size=5)
    | st.lists(st.text(max_size=3), max_size=3)
    | _ids
    | st.lists(_ids, max_size=3)
    | _values
)
_bodies = st.fixed_dictionaries(
    {"model": st.just("notes"), "input": _inputs},
    optional={
        "encoding_format": st.sampled_from(["float", "base64"]) | _values,
        "dimensions": st.integers(-1, 1 << 17) | _values,
        "user": st.text(max_size=3) | _values,
        "anything": _values,
    },
)


@examples(100, night=300)
@given(body=_bodies | _values)
def test_a_body_is_a_request_that_the_schema_allows_or_an_invalid_request(body: Any) -> None:
    refusal = ""
    chat: ChatRequest | None = None
    text = json.dumps(body)
    try:
        chat = parse(text.encode()).chat
    except InvalidRequest as error:
        refusal = error.message
    # Other tests check what no schema expresses: the rules of the JSON reader.
    is_valid = body_validator("EmbeddingBody").is_valid(json.loads(text))
    assert is_valid == (chat is not None) or "JSON" in refusal
    if chat is None:
        return
    assert chat.embedding is not None
    given_texts = body["input"]
    is_one = isinstance(given_texts, str) or isinstance(given_texts[0], int)
    assert len(chat.embedding.texts) == (1 if is_one else len(given_texts))
    assert all(chat.embedding.texts)
    assert ChatRequest.from_bytes(chat.to_bytes()) == chat
