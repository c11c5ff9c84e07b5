from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from worker.engine.output.detokenizer import ByteDetokenizer, Detokenizer, WindowDetokenizer

BYTES = [bytes([n]) for n in range(256)]


def decoded(detokenizer: Detokenizer, ids: Sequence[int]) -> str:
    return "".join([*(detokenizer.feed(token) for token in ids), detokenizer.flush()])


@given(text=st.text())
def test_bytes_of_any_text_join_to_the_text(text: str) -> None:
    assert (
        decoded(ByteDetokenizer(BYTES), text.encode("utf-8", "replace"))
        == text.encode("utf-8", "replace").decode()
    )


@given(ids=st.lists(st.integers(0, 255)))
def test_any_bytes_give_what_decoding_them_at_once_gives(ids: list[int]) -> None:
    assert decoded(ByteDetokenizer(BYTES), ids) == bytes(ids).decode("utf-8", "replace")


@given(ids=st.lists(st.integers(0, 255)))
def test_no_piece_ends_in_half_a_character(ids: list[int]) -> None:
    detokenizer = ByteDetokenizer(BYTES)
    decoded_text = "".join(detokenizer.feed(token) for token in ids)
    assert bytes(ids).decode("utf-8", "replace").startswith(decoded_text)


def test_an_id_beyond_the_vocabulary_adds_no_text() -> None:
    assert decoded(ByteDetokenizer([b"a", b"b"]), [0, 7, 1]) == "ab"


def test_one_leading_space_is_stripped_where_the_decoder_does_so() -> None:
    table = [b" ", b"a"]
    assert decoded(ByteDetokenizer(table, strip_first_space=True), [0, 0, 1, 0, 1]) == " a a"


@given(text=st.text())
def test_a_window_over_any_decoder_joins_to_its_text(text: str) -> None:
    encoded = text.encode("utf-8", "replace")
    window = WindowDetokenizer(lambda ids: bytes(ids).decode("utf-8", "replace"))
    assert decoded(window, encoded) == encoded.decode()


def test_a_window_gives_up_on_noise_that_never_becomes_a_character() -> None:
    window = WindowDetokenizer(lambda ids: "\ufffd" * len(ids))
    assert any(window.feed(0) for _ in range(40))
