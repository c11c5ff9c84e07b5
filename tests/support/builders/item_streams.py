"""Random, valid streams of items, and the answer that a stream adds up to."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import strategies as st

from api.generation import AssembledAnswer, Block
from domain.chat.generation import EmittedCall, OutputRun
from domain.chat.items import (
    Body,
    Failed,
    Finished,
    Progress,
    Started,
    StreamItem,
    Text,
    Thinking,
    ToolEnd,
    ToolInput,
    ToolStart,
)
from domain.chat.logprobs import Alternative, TokenLogprob
from domain.chat.stored_answer import StoredAnswer
from domain.values import StopReason, Usage

Run = st.SearchStrategy[list[Body]]

_values = st.floats(-9999, 0, allow_nan=False)
_logprobs = st.builds(
    TokenLogprob,
    st.integers(0, 99),
    st.binary(min_size=1, max_size=4),
    _values,
    st.lists(st.builds(Alternative, st.binary(max_size=4), _values), max_size=2).map(tuple),
)
_texts: Run = st.builds(
    lambda text, logprobs: [Text(text=text, ids=(1,), logprobs=logprobs)],
    st.text(min_size=1, max_size=6),
    st.just(()) | st.lists(_logprobs, max_size=2).map(tuple),
)
_thoughts: Run = st.builds(
    lambda text: [Thinking(text=text, ids=(2,))], st.text(min_size=1, max_size=6)
)
_progress: Run = st.just([Progress(phase="prefill", done=1, total=2)])
_calls: Run = st.builds(
    lambda name, pieces: [
        ToolStart(id=f"toolu_{name}", name=name),
        *(ToolInput(fragment=piece, ids=(3,)) for piece in pieces),
        ToolEnd(),
    ],
    st.text("abc", min_size=1, max_size=3),
    st.sampled_from([[], ["{}"], ['{"a"', ": 1}"], ["{", '"b": [', "]}"]]),
)


@st.composite
def _usages(draw: st.DrawFn) -> Usage:
    prompt = draw(st.integers(1, 1000))
    return Usage(
        prompt_tokens=prompt,
        cached_tokens=draw(st.integers(0, prompt)),
        completion_tokens=draw(st.integers(0, 1000)),
    )


finished_bodies: st.SearchStrategy[Body] = st.builds(
    Finished,
    stop_reason=st.sampled_from([one for one in StopReason if one is not StopReason.CANCELLED]),
    usage=_usages(),
    stop_sequence=st.none() | st.text(max_size=3),
)
failed_bodies: st.SearchStrategy[Body] = st.builds(
    Failed,
    error=st.sampled_from(["engine_failure", "prompt_too_long", "cancelled", "of_next_year"]),
    message=st.text(max_size=9),
    retryable=st.booleans(),
)


@st.composite
def item_streams(draw: st.DrawFn, *, failing: bool = False) -> list[StreamItem]:
    """``Started``, any mix of pieces, then one terminal item."""
    runs = draw(st.lists(_texts | _thoughts | _progress | _calls, max_size=8))
    last = draw(failed_bodies if failing else finished_bodies)
    bodies: list[Body] = [
        Started(prompt_tokens=3, cached_tokens=1),
        *(body for run in runs for body in run),
        last,
    ]
    items: list[StreamItem] = []
    n = 0
    for body in bodies:
        transient = isinstance(body, Progress)
        items.append(StreamItem(n=None if transient else n, attempt=1, body=body))
        n += not transient
    return items


def answer_of(items: Iterable[StreamItem]) -> AssembledAnswer:
    """Return the answer that ``items`` add up to."""
    answer = AssembledAnswer()
    for item in items:
        answer.add(item)
    return answer


def stored_of(items: Iterable[StreamItem], *, is_ordered: bool = True) -> StoredAnswer:
    """Return the answer that ``items`` add up to as the log keeps it."""
    whole = answer_of(items)
    return StoredAnswer(
        text=whole.joined("text"),
        thinking=whole.joined("thinking"),
        calls=tuple(
            EmittedCall(id=one.id, name=one.name, arguments=one.text, is_complete=True)
            for one in whole.tools
        ),
        logprobs=tuple(whole.logprobs),
        order=_order_of(whole.blocks) if is_ordered else (),
    )


def _order_of(blocks: list[Block]) -> tuple[OutputRun, ...]:
    return tuple(
        OutputRun(one.kind, 1 if one.kind == "tool" else len(one.text), len(one.logprobs))
        for one in blocks
    )
