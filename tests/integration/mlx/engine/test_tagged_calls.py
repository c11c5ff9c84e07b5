"""A random network at full temperature that writes calls between marks, in each family's way."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest

from domain.chat.request import ChatRequest, Message, ToolChoice
from domain.model.registry import ModelEntry
from domain.values import SamplingWish, StopReason
from ops.clock import SystemClock
from tests.support.models.engine_probe import CollectingSink, finished, submit
from tests.support.models.tiny_models import TEMPLATE, make_tiny_llama
from worker.engine.engine import BatchEngine
from worker.engine.mlx.model.loader import load_weights
from worker.engine.mlx.runner import BatchRunner

#: What mlx-lm knows each family by.
_FAMILIES = {
    "qwen": "{# <tool_call>\n<function= #}",
    "glm": "{# <arg_key> #}",
    "minimax": "{# <minimax:tool_call> #}",
    "kimi": "{# <|tool_calls_section_begin|> #}",
    "lfm": "{# <|tool_call_start|> #}",
    "gemma4": "{# <|tool_call>call:f{}<tool_call|> #}",
    "minicpm": '{# <function name=""><param name=""> #}',
}
_POINT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["point", "a <vector>"]},
        "at": {
            "type": "array",
            "items": {"type": "integer", "minimum": 0, "maximum": 99},
            "minItems": 2,
            "maxItems": 2,
        },
        "label": {"type": "string", "maxLength": 6},
        "note": {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "null"}]},
        "is_sharp": {"type": "boolean"},
    },
    "required": ["kind", "at", "label"],
    "additionalProperties": False,
}
_TOOLS = tuple(
    {"type": "function", "function": {"name": name, "parameters": _POINT}}
    for name in ("Place", "Move")
)


@pytest.fixture(scope="module", params=sorted(_FAMILIES))
def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[BatchEngine, CollectingSink]]:
    place = tmp_path_factory.mktemp("models") / request.param
    source = ModelEntry(
        name="tiny",
        source=str(make_tiny_llama(place, template=TEMPLATE + _FAMILIES[request.param])),
    )
    sink = CollectingSink()
    engine = BatchEngine(
        runner_factory=lambda: BatchRunner(
            load_weights=lambda: load_weights(source), prefill_step_tokens=32
        ),
        sink=sink,
        clock=SystemClock(),
        max_batch_size=8,
    )
    engine.start()
    yield engine, sink
    engine.close(0)


def _asked(seed: int, choice: ToolChoice) -> ChatRequest:
    return ChatRequest(
        model="any",
        messages=(Message(role="user", content="go"),),
        max_tokens=400,
        sampling=SamplingWish(temperature=1.0, seed=seed),
        tools=_TOOLS,
        tool_choice=choice,
    )


def test_calls_that_must_be_made_match_their_schema(
    running: tuple[BatchEngine, CollectingSink],
) -> None:
    engine, _ = running
    choices = [ToolChoice(mode="any", parallel=False), ToolChoice(mode="tool", name="Move")] * 2
    handles = [
        submit(engine, f"must-{seed}", _asked(seed, choice)) for seed, choice in enumerate(choices)
    ]
    whole = 0
    for handle, choice in zip(handles, choices, strict=True):
        outcome = finished(handle)
        assert outcome.failure is None
        assert outcome.text.strip() == "" or outcome.stop_reason is StopReason.MAX_TOKENS
        for call in outcome.calls:
            assert call.name in ("Place", "Move")
            assert choice.name in (None, call.name)
            if call.is_complete:
                whole += 1
                jsonschema_rs.validator_for(_POINT).validate(json.loads(call.arguments))
    assert whole


def test_a_call_goes_on_the_same_from_every_item(
    running: tuple[BatchEngine, CollectingSink],
) -> None:
    engine, sink = running
    request = _asked(3, ToolChoice(mode="tool", name="Place"))
    whole = finished(submit(engine, "whole", request))
    items = sink.numbered("whole")
    assert len(items) > 1
    handles = [
        submit(engine, f"cut-{n}", request, attempt=2, emitted=items[:n])
        for n in range(0, len(items), 4)
    ]
    for handle in handles:
        outcome = finished(handle)
        assert outcome.token_ids == whole.token_ids
        assert [call.arguments for call in outcome.calls] == [c.arguments for c in whole.calls]
