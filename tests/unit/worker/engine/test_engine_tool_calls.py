"""Calls through the whole engine, with a scripted model."""

from __future__ import annotations

from typing import Any

import pytest

from domain.chat.items import StreamItem, ToolEnd, ToolInput, ToolStart
from domain.values import StopReason
from tests.support.fakes.engine import FakeEngine
from tests.support.models.engine_probe import CollectingSink, ask, finished, submit

_TOOLS: tuple[dict[str, Any], ...] = (
    {"type": "function", "function": {"name": "Bash", "parameters": {"type": "object"}}},
)
_CALL = '<tool_call>\n{"name": "Bash", "arguments": {"command": "ls </tool_call>"}}\n</tool_call>'
_OUTPUT = f"Look.\n{_CALL}\n{_CALL}"


def _engine(sink: CollectingSink) -> FakeEngine:
    return FakeEngine(sink, {"go": _OUTPUT}, context=4000)


def test_calls_are_items_and_part_of_the_outcome() -> None:
    sink = CollectingSink()
    with _engine(sink) as engine:
        outcome = finished(submit(engine, "job-a", ask("go", max_tokens=900, tools=_TOOLS)))
    assert outcome.text == "Look."
    assert [call.arguments for call in outcome.calls] == ['{"command": "ls </tool_call>"}'] * 2
    assert [call.id for call in outcome.calls] == ["toolu_a_0", "toolu_a_1"]
    assert all(call.is_complete for call in outcome.calls)
    assert outcome.stop_reason is StopReason.END_TURN
    kinds = [type(item.body) for item in sink.numbered("job-a")]
    assert kinds.count(ToolStart) == kinds.count(ToolEnd) == 2


def test_without_tools_what_looks_like_a_call_is_text() -> None:
    with _engine(CollectingSink()) as engine:
        outcome = finished(submit(engine, "job-a", ask("go", max_tokens=900)))
    assert (outcome.text, outcome.calls) == (_OUTPUT, ())


def test_answer_that_may_make_one_call_is_over_after_it() -> None:
    with _engine(CollectingSink()) as engine:
        request = ask("go", max_tokens=900, tools=_TOOLS, parallel=False)
        outcome = finished(submit(engine, "job-a", request))
    assert len(outcome.calls) == 1
    assert outcome.calls[0].is_complete
    assert outcome.stop_reason is StopReason.END_TURN
    assert outcome.usage.completion_tokens < len(_OUTPUT) - len(_CALL) + 5


def test_call_cut_by_the_limit_has_no_end() -> None:
    sink = CollectingSink()
    with _engine(sink) as engine:
        request = ask("go", max_tokens=_OUTPUT.index("ls") + 1, tools=_TOOLS)
        outcome = finished(submit(engine, "job-a", request))
    assert outcome.stop_reason is StopReason.MAX_TOKENS
    assert outcome.calls[0].arguments == '{"command": "l'
    assert not outcome.calls[0].is_complete
    assert not any(isinstance(item.body, ToolEnd) for item in sink.numbered("job-a"))


@pytest.mark.parametrize("parallel", [True, False])
def test_attempt_after_a_crash_emits_the_rest_of_the_calls(*, parallel: bool) -> None:
    request = ask("go", max_tokens=900, tools=_TOOLS, parallel=parallel)
    sink = CollectingSink()
    with _engine(sink) as engine:
        whole = finished(submit(engine, "job-a", request))
        items = sink.numbered("job-a")
        assert len(items) > 20
        for k in range(0, len(items) + 1, 3):
            sink.items.clear()
            resumed = submit(engine, "job-a", request, attempt=2, emitted=items[:k])
            again = finished(resumed)
            assert [*items[:k], *_first_attempt(sink.numbered("job-a"))] == items
            assert (again.calls, again.text) == (whole.calls, whole.text)
            assert again.token_hash == whole.token_hash


def _first_attempt(items: list[StreamItem]) -> list[StreamItem]:
    return [StreamItem(n=item.n, attempt=1, body=item.body) for item in items]


def test_arguments_leave_with_the_tokens_that_write_them() -> None:
    sink = CollectingSink()
    with _engine(sink) as engine:
        finished(submit(engine, "job-a", ask("go", max_tokens=900, tools=_TOOLS)))
    fragments = [i.body.fragment for i in sink.numbered("job-a") if isinstance(i.body, ToolInput)]
    assert max(map(len, fragments)) <= 2
