"""Reasoning is counted, and closed at its limit, from the tokens alone; each character is one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.chat.generation import GenerationTask, PreparedPrompt
from domain.values import JobId, Sampling
from tests.support.fakes.engine import ScriptedRunner
from worker.engine.grammar.ports import Constraint, Unlimited
from worker.engine.output.channel_parser import HARMONY, MUSE_SPARK
from worker.engine.output.tool_calls.reader import ToolFormat
from worker.engine.ports import LoadedModel
from worker.engine.reasoning_limit import with_reasoning_limit
from worker.engine.text_assembler import assembler_for

END = 1
TAG = "</think>"
OPEN = "Why?<think>"
TOOL = {"type": "function", "function": {"name": "look", "parameters": {}}}
#: Characters of which tags, calls and their halves are made.
_PIECES = st.sampled_from(
    ["a", "b ", "\n", "<", "</", "</th", "<think>", TAG, "<tool_call>", '{"name": "look"}', "é"]
)


def coded(text: str) -> tuple[int, ...]:
    return tuple(map(ord, text))


def prompt_of(
    limit: int | None, *, text: str = OPEN, calls: bool = False, opened: str = ""
) -> PreparedPrompt:
    return PreparedPrompt(
        tokens=coded(text),
        cached_tokens=0,
        cache_source="none",
        max_tokens=1000,
        sampling=Sampling(),
        thinking_limit=limit,
        tools=(TOOL,) if calls else (),
        opened=opened,
    )


def loaded() -> LoadedModel:
    return with_reasoning_limit(ScriptedRunner().load(), coded, frozenset({END}))


def constraint_of(limit: int, **more: object) -> Constraint:
    made = loaded().constraint(prompt_of(limit, **more))  # type: ignore[arg-type]  # by name
    assert made is not None
    return made


def forced(constraint: Constraint) -> int | None:
    """Return the only token that may come, ``None`` if any may."""
    mask = constraint.mask()
    if mask is None:
        return None
    bits = int.from_bytes(mask, "little")
    assert bits.bit_count() == 1
    return bits.bit_length() - 1


def generated(constraint: Constraint, wanted: Sequence[int]) -> tuple[int, ...]:
    """Return the wanted tokens, replaced where the constraint forbids them."""
    tokens = []
    for token in wanted:
        while (only := forced(constraint)) is not None:
            constraint.accept(only)
            tokens.append(only)
        constraint.accept(token)
        tokens.append(token)
    return tuple(tokens)


def text_of(tokens: Sequence[int]) -> str:
    return "".join(map(chr, tokens))


def counted(tokens: Sequence[int], prompt: PreparedPrompt) -> int:
    task = GenerationTask(
        job_id=JobId("job-1"), attempt=1, prompt=prompt, emitted=(), first_item=1, stop=()
    )
    assembler = assembler_for(loaded(), task)
    for token in tokens:
        assembler.feed(token)
    return assembler.reasoning_tokens


@pytest.mark.parametrize("limit", [0, 5, 8, 9, 20])
def test_reasoning_that_the_prompt_opened_is_closed_within_its_limit(limit: int) -> None:
    constraint = constraint_of(limit)
    tokens = generated(constraint, coded("." * 30))
    thought = max(0, limit - len(TAG))
    assert text_of(tokens) == "." * thought + TAG + "." * (30 - thought)
    assert counted(tokens, prompt_of(limit)) == max(limit, len(TAG))


def test_a_tag_that_the_model_has_begun_is_gone_on_with() -> None:
    tokens = generated(constraint_of(12), coded("ab</t" + "." * 9))
    assert text_of(tokens) == "ab</think>t........."


def test_reasoning_that_ends_by_itself_is_left_alone() -> None:
    text = "ab</think>Done, at length."
    constraint = constraint_of(20)
    assert text_of(generated(constraint, coded(text))) == text
    assert constraint.is_free
    assert counted(coded(text), prompt_of(20)) == len("ab</think>")


def test_reasoning_that_the_model_opens_counts_with_both_tags() -> None:
    constraint = constraint_of(20, text="Why?")
    tokens = generated(constraint, coded("<think>" + "." * 20))
    assert text_of(tokens) == "<think>....." + TAG + "." * 15
    assert counted(tokens, prompt_of(20, text="Why?")) == 20


def test_an_answer_that_begins_with_text_is_never_looked_at_again() -> None:
    constraint = constraint_of(5, text="Why?")
    text = "No: <think> is a tag."
    assert text_of(generated(constraint, coded(text))) == text
    assert constraint.is_free
    assert counted(coded(text), prompt_of(5, text="Why?")) == 0


def test_reasoning_after_a_call_has_what_is_left() -> None:
    call = '<tool_call>{"name": "look", "arguments": {}}</tool_call>'
    wanted = coded("abcd</think>" + call + "<think>" + "." * 40)
    tokens = generated(constraint_of(30, calls=True), wanted)
    assert text_of(tokens).startswith("abcd</think>" + call + "<think>..." + TAG + "....")
    assert counted(tokens[: tokens.index(ord("."))], prompt_of(30, calls=True)) == 12 + 7


def test_reasoning_after_a_call_that_the_prompt_began_is_bounded() -> None:
    begun = '<tool_call>\n{"name": "'
    constraint = constraint_of(18, text="Why?", calls=True, opened=begun)
    rest = 'look", "arguments": {}}</tool_call>'
    tokens = generated(constraint, coded(rest + "<think>" + "." * 9))
    assert text_of(tokens) == rest + "<think>..." + TAG + "......"


def test_the_end_of_the_turn_ends_it() -> None:
    constraint = constraint_of(9)
    constraint.accept(END)
    assert forced(constraint) is None


def test_a_limit_of_nothing_holds_nothing() -> None:
    assert loaded().constraint(prompt_of(None)) is None


def test_tokens_that_do_not_decode_to_the_tag_disable_the_limit() -> None:
    model = ScriptedRunner().load()
    assert with_reasoning_limit(model, lambda _: coded("</thin>"), frozenset()) is model
    assert with_reasoning_limit(model, lambda _: (), frozenset()) is model
    blind = replace(model, think_tags=None)
    assert with_reasoning_limit(blind, coded, frozenset()) is blind


class _Other(Unlimited):
    """What the answer is held to besides: it forbids all but one token."""

    is_over = False
    is_free = False
    accepted_count = 0

    def __init__(self) -> None:
        self.seen: list[int] = []

    def accept(self, token: int) -> None:
        self.seen.append(token)

    def mask(self) -> bytes | None:
        return b"\x80"


def test_what_the_answer_is_held_to_besides_sees_every_token() -> None:
    other = _Other()
    model = replace(ScriptedRunner().load(), constraint=lambda _: other)
    constraint = with_reasoning_limit(model, coded, frozenset({END})).constraint(prompt_of(9))
    assert constraint is not None
    constraint.accept(ord("a"))
    for letter in TAG:
        assert forced(constraint) == ord(letter)
        constraint.accept(ord(letter))
    assert other.seen == [*coded("a" + TAG)]
    assert constraint.mask() == b"\x80"
    assert not constraint.is_free


@given(
    pieces=st.lists(_PIECES, max_size=30),
    limit=st.integers(0, 60),
    is_open=st.booleans(),
    calls=st.booleans(),
)
def test_it_stays_within_its_limit_and_goes_on_the_same_from_every_token(
    pieces: list[str],
    limit: int,
    is_open: bool,  # noqa: FBT001 - drawn
    calls: bool,  # noqa: FBT001 - drawn
) -> None:
    text = OPEN if is_open else "Why?"
    fresh: Callable[[], Constraint] = lambda: constraint_of(limit, text=text, calls=calls)  # noqa: E731
    wanted = coded("".join(pieces))
    tokens = generated(fresh(), wanted)
    prompt = prompt_of(limit, text=text, calls=calls)
    sections = text_of(tokens).count("<think>") + is_open
    # A section that opens when nothing is left costs its two tags.
    # So does blank text before it, which counts as a part of it.
    blanks = sum(letter.isspace() for letter in text_of(tokens))
    most = limit + sections * len(TAG + "<think>") + blanks
    assert counted(tokens, prompt) <= most
    if sections == 1 and is_open:
        assert counted(tokens, prompt) <= max(limit, len(TAG))
    again = fresh()
    masks = []
    for token in tokens:
        masks.append(again.mask())
        again.accept(token)
    for cut in range(0, len(tokens) + 1, 7):
        resumed = fresh()
        for token in tokens[:cut]:
            resumed.accept(token)
        for place in range(cut, len(tokens)):
            assert resumed.mask() == masks[place]
            resumed.accept(tokens[place])
        assert resumed.accepted_count == len(tokens)


HEADER = "<|channel|>analysis<|message|>"
FINAL = "<|end|><|start|>assistant<|channel|>final<|message|>"


def harmony(limit: int, *, calls: bool = False) -> tuple[Constraint, PreparedPrompt]:
    model = replace(
        ScriptedRunner().load(),
        think_tags=None,
        channel_format=HARMONY,
        tool_format=ToolFormat(start="<|call|>", end=""),
    )
    prompt = prompt_of(limit, text="<|start|>assistant", calls=calls)
    made = with_reasoning_limit(model, coded, frozenset({END})).constraint(prompt)
    assert made is not None
    return made, prompt


def test_a_message_that_is_reasoning_is_ended_and_the_answer_begun() -> None:
    constraint, _ = harmony(len(HEADER) + 4 + len("<|end|>"))
    tokens = generated(constraint, coded(HEADER + "abcd" + "And so on."))
    assert text_of(tokens) == HEADER + "abcd" + FINAL + "And so on."


def test_where_tools_are_offered_the_model_chooses_between_answer_and_call() -> None:
    constraint, _ = harmony(len(HEADER) + 9, calls=True)
    for token in coded(HEADER + "ab"):
        assert constraint.mask() is None
        constraint.accept(token)
    for token in coded("<|end|><|start|>assistant<|channel|>"):
        assert forced(constraint) == token
        constraint.accept(token)
    mask = int.from_bytes(constraint.mask() or b"", "little")
    assert mask == 1 << ord("f") | 1 << ord("c")
    rest = "ommentary to=functions.look<|message|>{}"
    for token in coded("c" + rest):
        constraint.accept(token)
        assert constraint.mask() is None


def test_an_answer_whose_first_message_is_no_reasoning_is_left_alone() -> None:
    constraint, _ = harmony(5)
    text = "<|channel|>final<|message|>Yes, at some length."
    assert text_of(generated(constraint, coded(text))) == text


def test_a_family_without_channels_is_given_the_recipient() -> None:
    closing = "<|eom|><|start|>assistant to=user<|message|>"
    model = replace(ScriptedRunner().load(), think_tags=None, channel_format=MUSE_SPARK)
    constraint = with_reasoning_limit(model, coded, frozenset({END})).constraint(
        prompt_of(0, text="x")
    )
    assert constraint is not None
    tokens = generated(constraint, coded("to=self<|message|>hm"))
    assert text_of(tokens) == "to=self<|message|>" + closing + "hm"
