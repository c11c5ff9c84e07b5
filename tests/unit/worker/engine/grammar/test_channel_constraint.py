"""What answers in frames are held to, by the real library on a small vocabulary."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from domain.chat.generation import PreparedPrompt
from domain.errors import InvalidRequest
from domain.values import Sampling
from worker.engine.grammar.channel_constraint import ChannelConstraints
from worker.engine.grammar.guidance import GuidanceGrammars, grammars_for
from worker.engine.grammar.ports import Constraint
from worker.engine.output.channel_parser import HARMONY, MUSE_SPARK, ChannelFormat
from worker.engine.output.detokenizer import ByteDetokenizer

_MARKS = tuple(dict.fromkeys((*HARMONY.markers, *MUSE_SPARK.markers)))
_ENDS = frozenset(
    number
    for number, mark in enumerate(_MARKS)
    if mark in (*HARMONY.last_ends, *MUSE_SPARK.last_ends)
)


def _tool(name: str, *required: str, **properties: Any) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "parameters": schema}}


_READ = _tool("Read", "path", path={"type": "string"})
_WAIT = _tool("Wait", "seconds", seconds={"type": "integer", "minimum": 1, "maximum": 9})
_TOOLS = (_READ, _WAIT)
_FORM = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}


def _tokenizer() -> Tokenizer:
    """Marks are tokens, and so is every other byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {char: len(_MARKS) + n for n, char in enumerate(alphabet)}
    tokenizer = Tokenizer(
        models.BPE(vocab={**{mark: n for n, mark in enumerate(_MARKS)}, **vocabulary}, merges=[])
    )
    tokenizer.add_special_tokens([AddedToken(mark, special=True) for mark in _MARKS])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


_TOKENIZER = _tokenizer()
_BYTES = {_TOKENIZER.encode(chr(byte)).tokens[-1]: bytes([byte]) for byte in range(0x80)}
_TABLE = [
    _MARKS[n].encode() if n < len(_MARKS) else _BYTES.get(_TOKENIZER.id_to_token(n) or "", b"?")
    for n in range(_TOKENIZER.get_vocab_size())
]


@pytest.fixture(scope="module")
def grammars() -> GuidanceGrammars:
    made = grammars_for(_TOKENIZER.to_str(), _ENDS)
    assert made is not None
    return made


def _constraint(
    grammars: GuidanceGrammars,
    form: ChannelFormat = HARMONY,
    *,
    tools: tuple[dict[str, Any], ...] = (),
    **more: Any,
) -> Constraint | None:
    made = ChannelConstraints(grammars, lambda: ByteDetokenizer(_TABLE), form)
    prompt = PreparedPrompt(
        tokens=(20,),
        cached_tokens=0,
        cache_source="none",
        max_tokens=100,
        sampling=Sampling(),
        tools=tools,
        **more,
    )
    return made.constraint(prompt)


def _ids(text: str) -> list[int]:
    ids: list[int] = _TOKENIZER.encode(text, add_special_tokens=False).ids
    return ids


def _may(constraint: Constraint, token: int) -> bool:
    mask = constraint.mask()
    return mask is None or bool(mask[token // 8] >> (token % 8) & 1)


def _allowed_part(constraint: Constraint | None, text: str) -> str:
    """Feed a text while its tokens are allowed; return the allowed part."""
    assert constraint is not None
    ids = _ids(text)
    for number, token in enumerate(ids):
        if not _may(constraint, token):
            return b"".join(_TABLE[one] for one in ids[:number]).decode()
        constraint.accept(token)
    return text


def _is_free(constraint: Constraint | None) -> bool:
    return constraint is None or constraint.mask() is None


_THOUGHT = "<|channel|>analysis<|message|>to=functions.Nope<|end|><|start|>assistant"
_CALLS = (
    '<|channel|>commentary to=functions.Wait <|constrain|>json<|message|>{"seconds": 3}<|call|>',
    '<|channel|>commentary to=functions.Wait<|constrain|>json<|message|>{"seconds":3}<|call|>',
    ' to=functions.Wait<|channel|>commentary json<|message|>{"seconds": 3}<|call|>',
)


@pytest.mark.parametrize("call", _CALLS)
@pytest.mark.parametrize("lead", ["", _THOUGHT])
def test_a_call_is_held_to_its_tool_from_the_recipient_on(
    grammars: GuidanceGrammars, lead: str, call: str
) -> None:
    assert _allowed_part(_constraint(grammars, tools=_TOOLS), lead + call) == lead + call
    for right, wrong in (
        ("functions.Wait", "browser.open"),
        ("Wait", "Nope"),
        ("seconds", "path"),
        ("3}", "33}"),
        ("<|call|>", "<|end|>"),
        ("<|message|>", "<|end|>"),
        ("functions.Wait", "functions.Waitjson"),
    ):
        other = lead + call.replace(right, wrong)
        output = _allowed_part(_constraint(grammars, tools=_TOOLS), other)
        assert output == other[: len(lead) + call.index(right) + _shared(right, wrong)]


def _shared(right: str, wrong: str) -> int:
    """Return how much two texts have in common, in whole tokens."""
    if right.startswith("<"):
        return 0
    shortest = min(len(right), len(wrong))
    return next((n for n in range(shortest) if right[n] != wrong[n]), shortest)


def test_what_is_no_call_is_free(grammars: GuidanceGrammars) -> None:
    for text in (
        "<|channel|>final<|message|>to=functions.Nope {",
        "Words that contain to=functions.Nope",
        "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>final",
        "<|start|>functions.Wait to=assistant<|channel|>commentary<|message|>late",
        "<|end|><|message|><|constrain|> to=functions.Nope",
    ):
        constraint = _constraint(grammars, tools=_TOOLS)
        assert _allowed_part(constraint, text) == text
        assert _is_free(constraint)
    assert _constraint(grammars) is None
    assert _constraint(grammars, MUSE_SPARK, tools=_TOOLS) is None


@pytest.mark.parametrize(
    ("opened", "rest"),
    [
        (
            "<|channel|>commentary to=functions.",
            'Wait <|constrain|>json<|message|>{"seconds": 1}<|call|>',
        ),
        (
            "<|channel|>commentary to=functions.Wait <|constrain|>json<|message|>",
            '{"seconds": 1}<|call|>',
        ),
    ],
)
def test_a_call_that_the_prompt_opens_is_held_from_the_first_token_on(
    grammars: GuidanceGrammars, opened: str, rest: str
) -> None:
    asked: Any = {"tools": _TOOLS, "opened": opened}
    assert not _is_free(_constraint(grammars, **asked))
    constraint = _constraint(grammars, **asked)
    assert _allowed_part(constraint, rest) == rest
    assert constraint is not None
    assert (constraint.is_over, constraint.mask()) == (True, None)
    wrong = rest.replace("seconds", "path")
    assert _allowed_part(_constraint(grammars, **asked), wrong) != wrong
    # A form of the answer is no matter of a call.
    assert _allowed_part(_constraint(grammars, answer_schema=_FORM, **asked), rest) == rest


def test_an_answer_with_a_form_is_held_in_its_channel(grammars: GuidanceGrammars) -> None:
    thought = "<|channel|>analysis<|message|>Free {<|end|>"
    again = f"<|start|>assistant{thought}"
    for final in (
        '<|channel|>final<|message|>{"a": 1}<|return|>',
        '<|channel|>final <|constrain|>json<|message|>{"a": 1}<|return|>',
    ):
        for text in (final, f"{thought}{again}<|start|>assistant{final}"):
            assert _allowed_part(_constraint(grammars, answer_schema=_FORM), text) == text
    for wrong, until in (
        ("Sure", ""),
        ("<|channel|>commentary<|message|>Sure", "<|channel|>"),
        ('<|channel|>final<|message|>{"b": 1}', '<|channel|>final<|message|>{"'),
        ('<|channel|>final<|message|>{"a": 1}<|end|>', '<|channel|>final<|message|>{"a": 1}'),
        (f"{thought}So.", thought),
        ("<|channel|>analysis<|message|>Hm<|return|>", "<|channel|>analysis<|message|>Hm"),
        # A message that is left without its end leads to the next header all the same.
        ("<|channel|>analysis<|message|>Hm<|channel|>final<|message|>S",
         "<|channel|>analysis<|message|>Hm<|channel|>final<|message|>"),
    ):  # fmt: skip
        assert _allowed_part(_constraint(grammars, answer_schema=_FORM), wrong) == until


def test_a_form_leaves_room_for_calls(grammars: GuidanceGrammars) -> None:
    asked: Any = {"answer_schema": _FORM, "tools": _TOOLS}
    for text in (_CALLS[0], f"{_THOUGHT}{_CALLS[0]}"):
        assert _allowed_part(_constraint(grammars, **asked), text) == text
    wrong = _CALLS[0].replace("Wait", "Nope")
    assert _allowed_part(_constraint(grammars, **asked), wrong) == wrong[: wrong.index("Nope")]


def test_muse_spark_writes_the_schema_to_the_user(grammars: GuidanceGrammars) -> None:
    asked: Any = {"answer_schema": _FORM, "tools": _TOOLS}
    thought = "to=self<|message|>Free.<|eom|><|start|>assistant "
    for text in (
        'to=user<|message|>{"a": 1}<|eot|>',
        thought + 'to=user<|message|>{"a": 1}<|eot|>',
        thought + "to=Wait<|message|><atem:function_calls>",
    ):
        assert _allowed_part(_constraint(grammars, MUSE_SPARK, **asked), text) == text
    assert _allowed_part(_constraint(grammars, MUSE_SPARK, **asked), "to=user<|message|>Sure") == (
        "to=user<|message|>"
    )


def test_muse_spark_must_name_a_tool_if_it_must_call_one(grammars: GuidanceGrammars) -> None:
    asked: Any = {"tools": _TOOLS, "opened": " to="}
    constraint = _constraint(grammars, MUSE_SPARK, **asked)
    assert _allowed_part(constraint, "Read<|message|><atem:") == "Read<|message|><atem:"
    assert _is_free(constraint)
    assert _allowed_part(_constraint(grammars, MUSE_SPARK, **asked), "self<|message|>") == ""
    opened = ' to=Read<|message|><atem:function_calls>\n<atem:invoke name="Read">\n'
    assert _constraint(grammars, MUSE_SPARK, tools=_TOOLS, opened=opened) is None


def test_a_form_that_cannot_be_kept_is_an_error_or_the_nearest_that_can(
    grammars: GuidanceGrammars,
) -> None:
    schema = {"type": "array", "uniqueItems": True}
    with pytest.raises(InvalidRequest, match="cannot be kept"):
        _constraint(grammars, answer_schema=schema, is_strict=True)
    wider = _constraint(grammars, answer_schema=schema)
    assert _allowed_part(wider, "<|channel|>final<|message|>words") == "<|channel|>final<|message|>"


def test_a_name_that_is_no_text_leaves_calls_free(grammars: GuidanceGrammars) -> None:
    assert _constraint(grammars, tools=(_tool("\ud800"), _WAIT)) is None


def test_words_sampled_without_a_constraint_end_it(grammars: GuidanceGrammars) -> None:
    constraint = _constraint(grammars, answer_schema=_FORM)
    assert constraint is not None
    for token in _ids("Sure, {"):
        constraint.accept(token)
    assert _is_free(constraint)


_GRAMMARS = grammars_for(_TOKENIZER.to_str(), _ENDS)
_PIECES = st.sampled_from(
    [*HARMONY.markers, "assistant", "analysis", "final", " to=", "functions."]
)


@given(output=st.lists(_PIECES, max_size=8).map("".join), has_schema=st.booleans())
def test_a_call_after_any_output_is_constrained_or_free_and_never_an_error(
    output: str, *, has_schema: bool
) -> None:
    assert _GRAMMARS is not None
    options: Any = {"answer_schema": _FORM if has_schema else None, "tools": _TOOLS}
    constraint = _constraint(_GRAMMARS, **options)
    assert constraint is not None
    for token in _ids(output):
        constraint.accept(token)
        constraint.mask()
    assert constraint.accepted_count == len(_ids(output))


@pytest.mark.parametrize("form", [None, _FORM], ids=["free", "schema"])
def test_looking_ahead_changes_nothing(
    grammars: GuidanceGrammars, form: dict[str, Any] | None
) -> None:
    text = "analysis<|message|>hm<|end|><|start|>assistant<|channel|>"
    text += 'commentary to=functions.Wait <|constrain|>json<|message|>{"seconds": 3}<|call|>'
    ids = _TOKENIZER.encode("<|channel|>" + text, add_special_tokens=False).ids
    one, other = (_constraint(grammars, tools=_TOOLS, answer_schema=form) for _ in range(2))
    assert one is not None
    assert other is not None
    for at, token in enumerate(ids):
        ahead = one.ahead()
        assert ahead is not None
        for later in ids[at : at + 9]:
            ahead.accept(later)
        assert one.mask() == other.mask()
        one.accept(token)
        other.accept(token)
    assert one.is_over
    assert other.is_over
