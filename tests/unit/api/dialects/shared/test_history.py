"""Joining turns for templates that take one system turn and alternating roles."""

from __future__ import annotations

from api.dialects.parsing import merge_turns
from domain.chat.request import Message


def user(text: str) -> Message:
    return Message(role="user", content=text)


def system(text: str) -> Message:
    return Message(role="system", content=text)


def assistant(text: str) -> Message:
    return Message(role="assistant", content=text)


def reminder(text: str) -> str:
    return f"<system-reminder>\n{text}\n</system-reminder>"


def test_first_system_turn_after_the_question_goes_before_it_so_that_sessions_share_it() -> None:
    one = merge_turns(["be kind"], [user("first question"), system("environment")])
    other = merge_turns(["be kind"], [user("other question"), system("environment")])
    assert one == (system("be kind"), user(f"{reminder('environment')}\n\nfirst question"))
    assert other[1].content.startswith(reminder("environment"))


def test_later_system_turns_stay_in_their_place() -> None:
    turns = [user("q"), system("environment"), assistant("a"), user("q2"), system("note")]
    assert merge_turns([], turns) == (
        user(f"{reminder('environment')}\n\nq"),
        assistant("a"),
        user(f"q2\n\n{reminder('note')}"),
    )


def test_only_one_system_turn_is_moved() -> None:
    settled = merge_turns([], [user("q"), system("one"), system("two")])
    assert settled == (user(f"{reminder('one')}\n\nq\n\n{reminder('two')}"),)


def test_next_turn_begins_with_the_whole_turn_before() -> None:
    turns = [user("q"), system("environment")]
    before = merge_turns(["s"], turns)
    after = merge_turns(["s"], [*turns, assistant("a"), user("q2"), system("note")])
    assert after[: len(before)] == before


def test_opening_system_turns_join_the_system_prompt() -> None:
    assert merge_turns(["a"], [system("b"), user("q")]) == (system("a\n\nb"), user("q"))


def test_system_text_alone_still_gives_something_to_answer() -> None:
    assert merge_turns(["a"], []) == (system("a"), user(""))
