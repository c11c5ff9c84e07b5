from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from worker.engine.output.stop_sequences import Hit, TagScanner

ABC = st.text("ab<", max_size=12)
TAGS = st.lists(st.text("ab<", min_size=1, max_size=4), max_size=3)


def test_of_two_tags_the_one_complete_first_wins() -> None:
    assert TagScanner(["bcd", "c"]).search("abcd") == Hit(2, 3, "c")


def test_of_two_tags_that_end_together_the_longer_wins() -> None:
    assert TagScanner(["c", "bc"]).search("abcd") == Hit(1, 3, "bc")


def test_without_tags_everything_is_safe() -> None:
    scanner = TagScanner([])
    assert scanner.search("anything") is None
    assert scanner.safe_length("anything") == len("anything")


@given(text=ABC, tags=TAGS)
def test_what_is_called_safe_never_holds_the_beginning_of_a_tag(text: str, tags: list[str]) -> None:
    scanner = TagScanner(tags)
    if scanner.search(text) is not None:
        return
    held = text[scanner.safe_length(text) :]
    beginnings = [n for n in range(len(text)) if any(tag.startswith(text[n:]) for tag in tags)]
    assert held == (text[beginnings[0] :] if beginnings else "")
