"""Images in messages, and the token ids that stand for them in prompts."""

from __future__ import annotations

import base64
import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.chat.images import (
    IMAGE_ID_MIN,
    IMAGE_MARK,
    IMAGE_NOTE,
    ChatImage,
    image_ids,
    image_of_base64,
    image_of_url,
    image_positions,
    unmarked,
)
from domain.chat.request import ChatRequest, Message, images_of, with_image_notes
from domain.errors import InvalidRequest
from domain.kv.hashing import ID_BITS
from domain.values import SamplingWish

_HEADS = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xe0", b"GIF89a", b"RIFF\x10\0\0\0WEBP")


def _image(head: bytes = _HEADS[0]) -> ChatImage:
    return ChatImage(base64.b64encode(head + b" rest of the file").decode())


@given(one=st.binary(), other=st.binary(), count=st.integers(1, 400))
def test_ids_are_a_function_of_the_digest_and_of_no_vocabulary(
    one: bytes, other: bytes, count: int
) -> None:
    ids = image_ids(one, count)
    assert ids == image_ids(one, count + 3)[:count]
    assert all(IMAGE_ID_MIN <= token < 1 << ID_BITS for token in ids)
    if one != other and count > 6:
        assert ids != image_ids(other, count)
    assert image_positions((5, *ids, 7)) == list(range(1, count + 1))


def test_ids_stay_the_same() -> None:
    # They name blocks on the disk.
    assert image_ids(hashlib.sha256(b"x").digest(), 3) == (826357, 996647, 813408)


@pytest.mark.parametrize(
    ("head", "format_name"), list(zip(_HEADS, ("png", "jpeg", "gif", "webp"), strict=True))
)
def test_four_formats_are_images(head: bytes, format_name: str) -> None:
    image = _image(head)
    assert image.url == f"data:image/{format_name};base64,{image.data}"
    assert image_of_base64(image.data, "f") == image
    assert image_of_url(f"data:image/png;base64,{image.data}", "f") == image
    assert image_of_url(f"DATA:;charset=x;base64,{image.data}", "f") == image
    assert image.content == head + b" rest of the file"


@pytest.mark.parametrize(
    ("url", "why"),
    [
        (None, "fetches no images"),
        ("", "fetches no images"),
        ("https://example.com/a.png", "fetches no images"),
        (f"data:image/png,{_image().data}", "fetches no images"),
        ("data:image/png;base64,", "is a PNG, JPEG, GIF or WebP"),
        ("data:image/png;base64,AAAA", "is a PNG, JPEG, GIF or WebP"),
        ("data:image/png;base64,A", "no valid base64"),
        ("data:image/png;base64,é", "no valid base64"),
    ],
)
def test_nothing_else_is_an_image(url: str | None, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why) as refused:
        image_of_url(url, "messages.0")
    assert refused.value.field == "messages.0"


def test_missing_data_is_no_image() -> None:
    with pytest.raises(InvalidRequest):
        image_of_base64(None, "f")


def test_a_request_keeps_its_images_and_a_plain_one_its_bytes() -> None:
    turn = Message(role="user", content=f"a{IMAGE_MARK}b", images=(_image(),))
    plain = Message(role="user", content="a")
    request = ChatRequest(
        model="m", messages=(plain, turn), max_tokens=1, sampling=SamplingWish(seed=1)
    )
    assert ChatRequest.from_bytes(request.to_bytes()) == request
    assert request.to_bytes().count(b'"images"') == 1
    assert images_of(request.messages) == turn.images


def test_a_note_stands_in_the_place_of_each_image() -> None:
    turn = Message(role="user", content=f"a{IMAGE_MARK}b", images=(_image(),))
    plain = Message(role="user", content=f"not an image: {IMAGE_MARK}")
    noted = with_image_notes((turn, plain))
    assert noted == (Message(role="user", content=f"a{IMAGE_NOTE}b"), plain)


def test_a_text_without_marks_stays() -> None:
    assert unmarked("a b") == "a b"
    assert unmarked(f"a{IMAGE_MARK}b") == "a\ufffdb"
