"""The bytes of requests for vectors and of stored vectors, and the bytes of each vector."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.chat.embedding import ELEMENT_BYTES, EmbeddingInputs, TextTooLong, Vectors
from domain.errors import InvalidRequest

INPUTS = [
    (EmbeddingInputs(texts=("Hé",)), {"texts": ["Hé"], "dimensions": None}),
    (
        EmbeddingInputs(texts=("a", "b"), dimensions=64),
        {"texts": ["a", "b"], "dimensions": 64},
    ),
    (
        EmbeddingInputs(texts=((1, 2), (3,)), dimensions=1),
        {"texts": [[1, 2], [3]], "dimensions": 1},
    ),
]
TWO = Vectors(dimensions=1, data=b"\x00\x00\x80?\x00\x00\x00@")
TWO_JSON = {"dimensions": 1, "data": "AACAPwAAAEA="}


@pytest.mark.parametrize(("inputs", "data"), INPUTS)
def test_inputs_survive_the_stored_request(inputs: EmbeddingInputs, data: dict[str, Any]) -> None:
    assert inputs.to_json() == data
    assert EmbeddingInputs.from_json(json.loads(json.dumps(data))) == inputs


def test_token_ids_are_texts_that_can_be_compared() -> None:
    read = EmbeddingInputs.from_json({"texts": [[1, 2], "one"], "dimensions": None})
    assert read.texts == ((1, 2), "one")
    assert len({read, EmbeddingInputs(texts=((1, 2), "one"))}) == 1


def test_stored_vectors_keep_their_form() -> None:
    assert TWO.to_json() == TWO_JSON
    assert Vectors.from_json(TWO_JSON) == TWO


def test_vectors_come_in_the_order_of_their_texts() -> None:
    vectors = Vectors(dimensions=2, data=bytes(range(24)))
    assert vectors.vector_bytes == 8
    assert list(vectors.each()) == [bytes(range(8)), bytes(range(8, 16)), bytes(range(16, 24))]
    assert list(TWO.each()) == [b"\x00\x00\x80?", b"\x00\x00\x00@"]


@pytest.mark.parametrize(("dimensions", "data"), [(0, b""), (-1, b""), (2, bytes(4)), (1, b"\x00")])
def test_vectors_without_elements_and_parts_of_vectors_are_a_mistake(
    dimensions: int, data: bytes
) -> None:
    with pytest.raises(AssertionError):
        Vectors(dimensions=dimensions, data=data)


@given(dimensions=st.integers(1, 5), texts=st.integers(0, 4), data=st.data())
def test_the_parts_of_vectors_are_the_whole(
    dimensions: int, texts: int, data: st.DataObject
) -> None:
    size = dimensions * texts * ELEMENT_BYTES
    vectors = Vectors(
        dimensions=dimensions, data=data.draw(st.binary(min_size=size, max_size=size))
    )
    each = list(vectors.each())
    assert b"".join(each) == vectors.data
    assert [len(one) for one in each] == [vectors.vector_bytes] * texts
    assert Vectors.from_json(json.loads(json.dumps(vectors.to_json()))) == vectors


def test_a_text_that_is_too_long_is_named_by_its_index() -> None:
    error = TextTooLong(2, 700, 512)
    assert error.message == "input 2 is too long: 700 tokens > 512 maximum"
    assert (error.tokens, error.maximum, error.code) == (700, 512, "prompt_too_long")
    assert isinstance(error, InvalidRequest)
    assert error.field is None
