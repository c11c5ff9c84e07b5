"""Where two requests part, and by which name the cause goes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.chat.divergence import EXCERPT_CHARS, Cause, find_divergence, shared_parts
from domain.chat.request import ChatRequest, Message, RawPrompt
from domain.values import SamplingWish

_JOB = "job-1"


def _tool(name: str, description: str = "does it") -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": description}}


_TALK = (
    Message(role="system", content="You help."),
    Message(role="user", content="Read the file."),
    Message(role="assistant", content="I read it.", origin="job-0"),
    Message(role="user", content="And now?"),
)
_BEFORE = ChatRequest(
    model="m",
    messages=_TALK,
    max_tokens=9,
    sampling=SamplingWish(seed=1),
    tools=(_tool("Bash"), _tool("Read"), _tool("Write")),
)
_NEXT = replace(
    _BEFORE,
    messages=(
        *_TALK,
        Message(role="assistant", content="Done.", origin=_JOB),
        Message(role="user", content="Thanks."),
    ),
)


def _with(number: int, **changes: Any) -> ChatRequest:
    messages = list(_NEXT.messages)
    messages[number] = replace(messages[number], **changes)
    return replace(_NEXT, messages=tuple(messages))


@pytest.mark.parametrize(
    ("now", "cause", "place"),
    [
        (replace(_NEXT, thinking=True), Cause.THINKING_TOGGLED, "thinking"),
        (replace(_NEXT, effort="high"), Cause.EFFORT_CHANGED, "effort"),
        (replace(_NEXT, tools=(*_NEXT.tools, _tool("Edit"))), Cause.TOOL_ADDED, "tools[3] Edit"),
        (replace(_NEXT, tools=_NEXT.tools[:2]), Cause.TOOL_REMOVED, "tools[2] Write"),
        (
            replace(_NEXT, tools=(_tool("Bash"), _tool("Edit"), *_NEXT.tools[1:])),
            Cause.TOOL_ADDED,
            "tools[1] Edit",
        ),
        (
            replace(_NEXT, tools=(_tool("Bash"), _tool("Read", "reads"), _tool("Write"))),
            Cause.TOOL_EDITED,
            "tools[1] Read",
        ),
        (replace(_NEXT, tools=_NEXT.tools[::-1]), Cause.TOOLS_REORDERED, "tools[0] Write"),
        (_with(0, content="You help a lot."), Cause.SYSTEM_CHANGED, "system"),
        (replace(_NEXT, messages=_NEXT.messages[1:]), Cause.SYSTEM_CHANGED, "messages[0] user"),
        (_with(1, content="Tell a joke."), Cause.OTHER_CONVERSATION, "messages[1] user"),
        (_with(2, content="I did not."), Cause.HISTORY_EDITED, "messages[2] assistant"),
        (
            replace(_NEXT, messages=(*_TALK[:2], Message(role="assistant", content="In short."))),
            Cause.HISTORY_CUT,
            "messages[2] assistant",
        ),
        (replace(_NEXT, messages=_TALK[:2]), Cause.HISTORY_CUT, "messages[2]"),
        (_with(4, origin=""), Cause.ANSWER_REWRITTEN, "messages[4] assistant"),
        (_with(4, origin="job-9"), Cause.ANSWER_REWRITTEN, "messages[4] assistant"),
    ],
)
def test_every_cause_has_its_name_and_place(now: ChatRequest, cause: Cause, place: str) -> None:
    found = find_divergence(_BEFORE, now, answered_by=_JOB)
    assert found is not None
    assert (found.cause, found.place) == (cause, place)


def test_what_a_compaction_leaves_of_an_agent_s_conversation_is_cut_history() -> None:
    summary = Message(role="user", content="It was about boats. And now?")
    now = replace(_NEXT, messages=(_TALK[0], summary))
    own = find_divergence(_BEFORE, now, answered_by=_JOB, same_agent=True)
    assert own is not None
    assert own.cause is Cause.HISTORY_CUT
    others = find_divergence(_BEFORE, now, answered_by=_JOB)
    assert others is not None
    assert others.cause is Cause.OTHER_CONVERSATION
    # Of one length, or longer, it is another one of the same agent's.
    longer = replace(_NEXT, messages=(_TALK[0], summary, *_NEXT.messages[2:]))
    another = find_divergence(_BEFORE, longer, answered_by=_JOB, same_agent=True)
    assert another is not None
    assert another.cause is Cause.OTHER_CONVERSATION


def test_what_goes_on_from_the_answer_has_no_difference() -> None:
    assert find_divergence(_BEFORE, _NEXT, answered_by=_JOB) is None
    assert find_divergence(_BEFORE, _BEFORE, answered_by=_JOB) is None
    # What an earlier turn is known to echo changes nothing that is read.
    assert find_divergence(_BEFORE, _with(2, origin=""), answered_by=_JOB) is None


@given(lead=st.text(max_size=200), old=st.text(max_size=99), new=st.text(max_size=99))
def test_excerpts_are_short_and_show_the_difference(lead: str, old: str, new: str) -> None:
    before = replace(_BEFORE, messages=(Message(role="system", content=lead + "o" + old),))
    now = replace(_BEFORE, messages=(Message(role="system", content=lead + "n" + new),))
    found = find_divergence(before, now, answered_by=_JOB)
    assert found is not None
    assert found.cause is Cause.SYSTEM_CHANGED
    for text, letter in ((found.before, "o"), (found.now, "n")):
        assert len(text) <= EXCERPT_CHARS + 2
        assert letter in text


def test_the_nearest_request_shares_most_from_the_beginning() -> None:
    other_tools = replace(_NEXT, tools=_NEXT.tools[:1])
    assert shared_parts(_BEFORE, _NEXT) == len(_BEFORE.tools) + len(_TALK)
    assert shared_parts(other_tools, _NEXT) == 1
    assert shared_parts(_with(1, content="else"), _NEXT) == len(_BEFORE.tools) + 1


def _raw(**raw: Any) -> ChatRequest:
    return replace(_BEFORE, messages=(), tools=(), raw=RawPrompt(**raw))


@pytest.mark.parametrize(
    ("before", "now", "place"),
    [
        (_raw(text="def add(a)"), _raw(text="def sub(a)"), "prompt[4]"),
        (_raw(ids=(1, 2, 3)), _raw(ids=(1, 2, 4)), "prompt[2]"),
        (_NEXT, _raw(text="def"), "prompt[0]"),
        (_raw(text="def"), _NEXT, "prompt[0]"),
    ],
)
def test_raw_prompts_part_where_their_texts_do(
    before: ChatRequest, now: ChatRequest, place: str
) -> None:
    found = find_divergence(before, now, answered_by=_JOB)
    assert found is not None
    assert (found.cause, found.place) == (Cause.OTHER_TEXT, place)


def test_raw_prompt_that_goes_on_parts_nowhere_and_is_the_nearest() -> None:
    before, now = _raw(text="def add"), _raw(text="def add(a)")
    assert find_divergence(before, now, answered_by=_JOB) is None
    assert shared_parts(before, now) == len("def add")
    assert shared_parts(_NEXT, now) == 0
