"""Which tokens' log probabilities belong to an answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.chat.items import Text, logprobs_of
from domain.chat.logprobs import TokenLogprob
from tests.unit.worker.engine.test_text_assembler import MIXED, TAGS, tokenised
from worker.engine.output.detokenizer import ByteDetokenizer
from worker.engine.output.output_parser import SectionParser
from worker.engine.output.tool_calls.reader import CallRules, ToolFormat
from worker.engine.ports import TokenLikelihood
from worker.engine.text_assembler import ItemBody, LogprobTracker, TextAssembler

CALLS = CallRules(
    format=ToolFormat(start="<call>", end="</call>", parse=lambda text, _: _call(text)),
    tools=({"type": "function", "function": {"name": "f"}},),
)
STREAMED = CallRules(format=ToolFormat(start="<call>", end="</call>"), tools=CALLS.tools)


def _call(text: str) -> dict[str, object]:
    return {"name": text.strip("()"), "arguments": {}}


def assembler_of(
    tokens: Sequence[bytes],
    *,
    known: Mapping[int, TokenLogprob] | None = None,
    thinking: bool = False,
    calls: CallRules | None = None,
    stop: Sequence[str] = (),
) -> TextAssembler:
    detokenizer = ByteDetokenizer(tokens)
    return TextAssembler(
        detokenizer,
        SectionParser(TAGS, stop, thinking=thinking, calls=calls),
        tracker=LogprobTracker(detokenizer.bytes_of, known),
    )


def likelihood_of(token: int) -> TokenLikelihood:
    return TokenLikelihood(-token / 8, ((token, -token / 8), (0, -9.0)))


def fed(
    assembler: TextAssembler, tokens: Sequence[int], *, first: int = 0, flush: bool = True
) -> list[ItemBody]:
    """The items of tokens; only tokens from ``first`` on have a likelihood."""
    items = []
    for token in tokens:
        if assembler.is_over:
            break
        likely = likelihood_of(token) if token >= first else None
        if (item := assembler.feed(token, likely)) is not None:
            items.append(item)
    return [*items, *assembler.flush()] if flush else items


def emitted(tokens: Sequence[str | bytes], **how: object) -> list[tuple[str, list[bytes]]]:
    """Each text of the answer, with the tokens emitted with it."""
    table = [token.encode() if isinstance(token, str) else token for token in tokens]
    items = fed(assembler_of(table, **how), range(len(table)))  # type: ignore[arg-type]
    return [
        (item.text, [one.token for one in item.logprobs])
        for item in items
        if isinstance(item, Text)
    ]


@pytest.mark.parametrize(
    ("tokens", "how", "expected"),
    [
        (["Hel", "lo"], {}, [("Hel", [b"Hel"]), ("lo", [b"lo"])]),
        # The tokens of one character are emitted together, each with its own bytes.
        ([b"\xe2\x82", b"\xac!"], {}, [("€!", [b"\xe2\x82", b"\xac!"])]),
        ([b"a\xe2", b"\x82", b"\xac"], {}, [("a", [b"a\xe2"]), ("€", [b"\x82", b"\xac"])]),
        # A token without bytes is no part of a text.
        (["a", b"", "b"], {}, [("a", [b"a"]), ("b", [b"b"])]),
        # Reasoning, its tags and the white space beside them are not the answer.
        (["why", "</think>", "\n\n", "so"], {"thinking": True}, [("so", [b"so"])]),
        (["why</think>so"], {"thinking": True}, [("so", [b"why</think>so"])]),
        (["<", "think", ">", "a", "</think>", " b"], {}, [("b", [b" b"])]),
        # Text held back is emitted once it is known to be no tag.
        (["a <", "think>"], {}, [("a ", [b"a <"]), ("<think>", [b"think>"])]),
        (["<", "3"], {}, [("<3", [b"<", b"3"])]),
        # A stop text is none, but a token that only ends in one is.
        (["to S", "TOP it"], {"stop": ("STOP",)}, [("to ", [b"to S"])]),
        (["to ", "STOP"], {"stop": ("STOP",)}, [("to ", [b"to "])]),
        # Neither is a call; the text behind it is, also where it comes late.
        (["x", "<call>", "f()", "</call>", "y", "z", "!"], {"calls": CALLS}, [("x", [b"x"]), ("yz!", [b"y", b"z", b"!"])]),  # noqa: E501 - a line of a table
        (["x", '<call>{"name"', ': "f", "argu', 'ments": {', "}}</call>", "y"], {"calls": STREAMED}, [("x", [b"x"]), ("y", [b"y"])]),  # noqa: E501 - a line of a table
        # What only looked like a call is text again.
        (["x ", "<call>", "}", "</call>"], {"calls": STREAMED}, [("x", [b"x "]), (" <call>}</call>", [b"<call>", b"}", b"</call>"])]),  # noqa: E501 - a line of a table
    ],
)  # fmt: skip
def test_the_tokens_of_the_answer_are_emitted_with_its_texts(
    tokens: Sequence[str | bytes],
    how: dict[str, object],
    expected: list[tuple[str, list[bytes]]],
) -> None:
    assert emitted(tokens, **how) == expected


@given(tokens=tokenised(MIXED))
def test_plain_text_is_emitted_token_by_token(tokens: list[bytes]) -> None:
    parser = SectionParser(None, (), thinking=False)
    detokenizer = ByteDetokenizer(tokens)
    assembler = TextAssembler(detokenizer, parser, tracker=LogprobTracker(detokenizer.bytes_of))
    fed(assembler, range(len(tokens)))
    values = assembler.logprobs
    assert values is not None
    assert [one.token for one in values] == [token for token in tokens if token]
    assert [one.logprob for one in values] == [-one.index / 8 for one in values]


TAGGED = st.lists(
    st.sampled_from(["a", " ", "\n", "<", "<think>", "</think>", "<call>", "f()", "</call>", "€"]),
    max_size=20,
).map("".join)


@given(
    tokens=tokenised(MIXED | TAGGED),
    thinking=st.booleans(),
    calls=st.sampled_from([None, CALLS, STREAMED]),
    data=st.data(),
)
def test_a_resumed_attempt_emits_the_same_logprobs(
    tokens: list[bytes], calls: CallRules | None, data: st.DataObject, *, thinking: bool
) -> None:
    ids = range(len(tokens))
    first = assembler_of(tokens, thinking=thinking, calls=calls, stop=("STOP",))
    whole = fed(first, ids)
    cut = data.draw(st.integers(0, len(whole)))
    emitted = [token for item in whole[:cut] for token in item.ids]
    known = {one.index: one for item in whole[:cut] for one in logprobs_of(item)}
    second = assembler_of(tokens, known=known, thinking=thinking, calls=calls, stop=("STOP",))
    before = fed(second, emitted, first=len(tokens), flush=False)
    again = [*before, *fed(second, ids[len(emitted) :])]
    assert again[cut:] == whole[cut:]
    assert second.logprobs == first.logprobs
    assert first.logprobs == tuple(
        one for item in whole if isinstance(item, Text) for one in item.logprobs
    )
