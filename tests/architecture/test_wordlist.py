"""The word list finds its words in prose and in identifiers, and nowhere else."""

from __future__ import annotations

import pytest

from tests.architecture.wordlist import WordList


@pytest.fixture
def words() -> WordList:
    return WordList.load()


@pytest.mark.parametrize(
    "line",
    ["# Nobody waits.", "def let_told() -> None:", "It lets go of it.", "told = 1", "by now it is"],
)
def test_refused_word_is_found(words: WordList, line: str) -> None:
    assert [one.number for one in words.check("domain/values.py", f"ok = 1\n{line}\n")] == [2]


@pytest.mark.parametrize("line", ["essay = 1", "tellurium", "unsaid", "hearth", "standby nowhere"])
def test_part_of_another_word_is_not_found(words: WordList, line: str) -> None:
    assert not list(words.check("domain/values.py", line))


def test_code_fence_of_a_page_is_exempt_and_its_prose_is_not(words: WordList) -> None:
    page = "The log tells.\n```console\n$ semantic run 'Tell me a story'\n```\nIt says.\n"
    assert [one.number for one in words.check("docs/page.md", page)] == [1, 5]


def test_exempt_line_is_exempt_in_its_file_alone(words: WordList) -> None:
    exempt = WordList(words.pattern, words.instead, (("docs/page.md", "Tell me"),))
    assert not list(exempt.check("docs/page.md", "`Tell me`"))
    assert list(exempt.check("docs/other.md", "`Tell me`"))
