"""A random network at full temperature, held to schemas: nothing else makes its words match."""

from __future__ import annotations

import json
import string
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from domain.chat.generation import Outcome
from domain.chat.request import ChatRequest, Message, ToolChoice
from domain.errors import InvalidRequest
from domain.model.registry import ModelEntry
from domain.values import Sampling, SamplingWish, StopReason
from ops.clock import SystemClock
from tests.support.day_and_night import by_day, examples
from tests.support.models.engine_probe import CollectingSink, ask, finished, submit
from tests.support.models.runner_probe import make_drafts_free
from tests.support.models.tiny_heads import make_tiny_qwen
from tests.support.models.tiny_models import TEMPLATE, make_tiny_llama
from worker.engine.engine import BatchEngine
from worker.engine.mlx.model.draft_head import draft_loader
from worker.engine.mlx.model.loader import load_weights
from worker.engine.mlx.runner import BatchRunner
from worker.engine.ports import LoadedModel, StepResult

_CALLS = (
    "{%- for message in messages if message.tool_calls -%}"
    '<tool_call>\n{"name": "{{ message.tool_calls[0].name }}", "arguments": {}}\n</tool_call>'
    "{%- endfor -%}{# tool_call.name #}"
)
_TOOLS_FILE = Path(__file__).parents[3] / "fixtures" / "tools" / "coding_agent.json"
_TOOLS: dict[str, Any] = {tool["name"]: tool for tool in json.loads(_TOOLS_FILE.read_text())}
_BLOCK = 32
#: Keys and values of two layers with two heads of 16 numbers.
_TOKEN_BYTES = 2 * 2 * 2 * 16 * 4
_POINT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["point", "vector"]},
        "at": {
            "type": "array",
            "items": {"type": "integer", "minimum": 0, "maximum": 99},
            "minItems": 2,
            "maxItems": 2,
        },
        "label": {"type": "string", "maxLength": 6},
    },
    "required": ["kind", "at", "label"],
    "additionalProperties": False,
}
#: Its arguments come to an end whatever the network says.
_TOOLS["Place"] = {"name": "Place", "input_schema": _POINT}


def start(
    model_dir: Path,
    sink: CollectingSink,
    *,
    budget_bytes: int | None = None,
    runner: Callable[..., BatchRunner] = BatchRunner,
) -> BatchEngine:
    source = ModelEntry(name="tiny", source=str(model_dir))

    def make() -> BatchRunner:
        made = runner(
            load_weights=lambda: load_weights(source),
            prefill_step_tokens=32,
            kv_budget_bytes=budget_bytes,
            block_tokens=_BLOCK,
        )
        made.load_draft = draft_loader(source)
        return made

    engine = BatchEngine(
        runner_factory=make,
        sink=sink,
        clock=SystemClock(),
        max_batch_size=8,
    )
    engine.start()
    return engine


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("models") / "tiny-hermes"
    return make_tiny_llama(place, template=TEMPLATE + _CALLS)


@pytest.fixture(scope="module")
def sink() -> CollectingSink:
    return CollectingSink()


@pytest.fixture(scope="module")
def engine(model_dir: Path, sink: CollectingSink) -> Iterator[BatchEngine]:
    engine = start(model_dir, sink)
    yield engine
    engine.close(0)


def formed(schema: Any, *, seed: int = 1, max_tokens: int = 200, **more: Any) -> ChatRequest:
    return ChatRequest(
        model="any",
        messages=(Message(role="user", content="go"),),
        max_tokens=max_tokens,
        sampling=SamplingWish(temperature=1.0, seed=seed, top_p=more.pop("top_p", None)),
        answer_schema=schema,
        **more,
    )


def functions(*names: str) -> tuple[dict[str, Any], ...]:
    return tuple(
        {
            "type": "function",
            "function": {"name": name, "parameters": _TOOLS[name]["input_schema"]},
        }
        for name in names
    )


def check(outcome: Outcome, schema: Any) -> bool:
    """Return whether an answer came to its end, which only a matching one may."""
    assert outcome.failure is None
    if outcome.stop_reason is StopReason.MAX_TOKENS:
        return False
    assert outcome.stop_reason is StopReason.END_TURN
    jsonschema_rs.validator_for(schema).validate(json.loads(outcome.text))
    return True


_NAMES = st.text(string.ascii_letters + string.digits + "_-$ é", min_size=1, max_size=8)
_SCALARS = st.one_of(
    st.builds(lambda n: {"type": "string", "maxLength": n}, st.integers(0, 5)),
    st.builds(
        lambda low, more: {"type": "integer", "minimum": low, "maximum": low + more},
        st.integers(-50, 50),
        st.integers(0, 900),
    ),
    st.sampled_from(
        [
            {"type": "boolean"},
            {"type": "null"},
            {"const": 'it\'s "so"'},
            {"type": "string", "pattern": "^[a-c]{1,3}-[0-9]$"},
            {"type": "string", "format": "date"},
            {"type": "string", "format": "uuid"},
        ]
    ),
    st.builds(lambda values: {"enum": values}, st.lists(_NAMES, min_size=1, max_size=4)),
)


def _nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.builds(
            lambda items, most: {"type": "array", "items": items, "maxItems": most},
            inner,
            st.integers(0, 3),
        ),
        st.builds(lambda choices: {"anyOf": choices}, st.lists(inner, min_size=1, max_size=3)),
        _objects(inner),
    )


@st.composite
def _objects(draw: st.DrawFn, inner: st.SearchStrategy[Any] = _SCALARS) -> dict[str, Any]:
    properties = draw(st.dictionaries(_NAMES, inner, max_size=4))
    required = (
        draw(st.lists(st.sampled_from(sorted(properties)), unique=True)) if properties else []
    )
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


_SCHEMAS = st.recursive(_SCALARS, _nested, max_leaves=6)


@settings(
    examples(6, night=24),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(schemas=st.lists(_SCHEMAS, min_size=4, max_size=8), seed=st.integers(0, 2**63))
def test_every_answer_matches_its_schema(
    engine: BatchEngine, schemas: list[dict[str, Any]], seed: int
) -> None:
    handles = [
        submit(engine, f"form-{n}", formed(schema, seed=seed + n, is_strict=True))
        for n, schema in enumerate(schemas)
    ]
    for handle, schema in zip(handles, schemas, strict=True):
        check(finished(handle), schema)


@pytest.mark.parametrize("top_p", [None, 0.9])
def test_an_answer_that_has_an_end_comes_to_it(engine: BatchEngine, top_p: float | None) -> None:
    requests = [formed(_POINT, seed=seed, top_p=top_p) for seed in range(8)]
    handles = [submit(engine, f"point-{n}", request) for n, request in enumerate(requests)]
    assert all(check(finished(handle), _POINT) for handle in handles)


def test_a_greedy_answer_matches_too(engine: BatchEngine) -> None:
    request = ChatRequest(
        model="any",
        messages=(Message(role="user", content="go"),),
        max_tokens=200,
        sampling=SamplingWish(temperature=0, seed=1),
        answer_schema={
            "type": "object",
            "properties": {"a": {"enum": ["x", "y"]}},
            "required": ["a"],
            "additionalProperties": False,
        },
    )
    assert check(finished(submit(engine, "greedy", request)), request.answer_schema)


def test_any_object_is_an_object(engine: BatchEngine) -> None:
    handles = [submit(engine, f"any-{n}", formed({}, seed=n)) for n in range(4)]
    for handle in handles:
        outcome = finished(handle)
        assert outcome.text.lstrip()[:1] == "{"
        check(outcome, {"type": "object"})


@pytest.mark.parametrize("name", ["Place", "Todo", "Config", "Schedule"])
def test_a_named_tool_gets_arguments_that_match(engine: BatchEngine, name: str) -> None:
    schema = _TOOLS[name]["input_schema"]
    requests = [
        formed(
            None,
            seed=seed,
            tools=functions(*_TOOLS),
            tool_choice=ToolChoice(mode="tool", name=name),
        )
        for seed in range(3)
    ]
    handles = [submit(engine, f"named-{name}-{n}", one) for n, one in enumerate(requests)]
    for handle in handles:
        outcome = finished(handle)
        (call,) = outcome.calls
        assert call.name == name
        if call.is_complete:
            jsonschema_rs.validator_for(schema).validate(json.loads(call.arguments))
        else:
            # Its texts have no longest length, and this network does not know when to stop.
            assert outcome.stop_reason is StopReason.MAX_TOKENS
            assert name != "Place"


def test_a_call_that_must_be_made_is_of_an_offered_tool(engine: BatchEngine) -> None:
    names = ("Read", "Wait")
    for seed in range(4):
        request = formed(
            None,
            seed=seed,
            max_tokens=60,
            tools=functions("Read"),
            deferred_tools=functions("Wait"),
            tool_choice=ToolChoice(mode="any", parallel=False),
        )
        outcome = finished(submit(engine, f"must-{seed}", request))
        assert outcome.calls[0].name in names


def test_those_beside_say_what_they_say_alone(engine: BatchEngine) -> None:
    free = [
        ask("tell me", max_tokens=40, sampling=Sampling(temperature=1.0, seed=5)),
        ask("tell me", max_tokens=40, sampling=Sampling(temperature=0.9, top_p=0.8, seed=6)),
        ask("tell me", max_tokens=40, sampling=Sampling(temperature=0)),
    ]
    held = [formed(_POINT, seed=seed) for seed in range(2)]
    alone = [
        finished(submit(engine, f"alone-{n}", request)).token_ids
        for n, request in enumerate([*free, *held])
    ]
    handles = [submit(engine, f"mixed-{n}", request) for n, request in enumerate([*free, *held])]
    assert [finished(handle).token_ids for handle in handles] == alone


def test_an_answer_goes_on_the_same_from_any_item(
    engine: BatchEngine, sink: CollectingSink
) -> None:
    request = formed(_POINT, seed=3)
    whole = finished(submit(engine, "cut", request))
    assert check(whole, _POINT)
    items = sink.numbered("cut")
    handles = [
        submit(engine, f"cut-{n}", request, attempt=2, emitted=items[:n])
        for n in range(0, len(items), by_day(3, night=1))
    ]
    for handle in handles:
        outcome = finished(handle)
        assert (outcome.token_ids, outcome.text) == (whole.token_ids, whole.text)


def test_a_call_goes_on_the_same_from_any_item(engine: BatchEngine, sink: CollectingSink) -> None:
    request = formed(
        None,
        max_tokens=60,
        tools=functions("Wait", "Read"),
        tool_choice=ToolChoice(mode="any", parallel=False),
    )
    whole = finished(submit(engine, "call", request))
    items = sink.numbered("call")
    handles = [
        submit(engine, f"call-{cut}", request, attempt=2, emitted=items[:cut])
        for cut in range(0, len(items), by_day(3, night=1))
    ]
    for handle in handles:
        again = finished(handle)
        assert again.token_ids == whole.token_ids
        assert again.calls[0].arguments == whole.calls[0].arguments


class _Watched(BatchRunner):
    """Counts who has to give way."""

    gave_way = 0

    def step(self) -> StepResult:
        step = super().step()
        _Watched.gave_way += len(step.preempted)
        return step


def test_who_gives_way_and_comes_back_goes_on_the_same(
    engine: BatchEngine, model_dir: Path, sink: CollectingSink
) -> None:
    points = {"type": "array", "items": _POINT, "minItems": 9}
    requests = [formed(points, seed=seed, max_tokens=110) for seed in range(4)]
    handles = [submit(engine, f"roomy-{n}", request) for n, request in enumerate(requests)]
    roomy = [finished(handle).token_ids for handle in handles]
    # Room for four prompts, but not for four answers as well.
    blocks = 1 + max(len(engine.prepare(request).tokens) for request in requests) // _BLOCK
    budget = (4 * blocks + 4) * _BLOCK * _TOKEN_BYTES
    runner = partial(_Watched, reuse=False)
    tight = start(model_dir, sink, budget_bytes=budget, runner=runner)
    try:
        handles = [submit(tight, f"tight-{n}", request) for n, request in enumerate(requests)]
        assert [finished(handle).token_ids for handle in handles] == roomy
    finally:
        tight.close(0)
    assert _Watched.gave_way


@pytest.mark.parametrize(
    "max_tokens", [40, *(pytest.param(limit, marks=pytest.mark.nightly) for limit in (46, 60, 75))]
)
def test_an_answer_that_its_limit_ends_is_whole(
    model_dir: Path, sink: CollectingSink, monkeypatch: pytest.MonkeyPatch, max_tokens: int
) -> None:
    make_drafts_free(monkeypatch)
    schema = {
        "type": "object",
        "properties": {"text": {"type": "string"}, "list": {"type": "array", "items": _POINT}},
        "required": ["text", "list"],
        "additionalProperties": False,
    }
    requests = [formed(schema, seed=seed, max_tokens=max_tokens) for seed in range(2)]
    by_runner = []
    for runner in (_Plain, _Drafting):
        engine = start(model_dir, sink, runner=runner)
        name = f"{runner.__name__}-{max_tokens}"
        handles = [submit(engine, f"{name}-{n}", one) for n, one in enumerate(requests)]
        outcomes = [finished(handle) for handle in handles]
        # The same comes after a crash, also close to the end.
        items = sink.numbered(f"{name}-0")
        for cut in (1, len(items) // 2, len(items) - 1):
            again = submit(engine, f"{name}-cut-{cut}", requests[0], attempt=2, emitted=items[:cut])
            assert finished(again).token_ids == outcomes[0].token_ids
        engine.close(0)
        for outcome in outcomes:
            jsonschema_rs.validator_for(schema).validate(json.loads(outcome.text))
            assert outcome.stop_reason is StopReason.MAX_TOKENS
        by_runner.append([outcome.token_ids for outcome in outcomes])
    assert by_runner[0] == by_runner[1]


class _Plain(BatchRunner):
    """Drafts nothing."""

    def load(self) -> LoadedModel:
        self.speculates = False
        return super().load()


class _Drafting(BatchRunner):
    """Counts drafts over all instances."""

    accepted = 0

    def close(self) -> None:
        _Drafting.accepted += self.drafts.accepted_tokens
        super().close()


@pytest.fixture(scope="module")
def headed_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that brings a head."""
    return make_tiny_qwen(tmp_path_factory.mktemp("headed") / "model", template=TEMPLATE + _CALLS)


@pytest.mark.parametrize(
    ("model", "temperature"),
    [
        ("model_dir", 1.0),
        ("headed_dir", 0.0),
        pytest.param("model_dir", 0.0, marks=pytest.mark.nightly),
        pytest.param("headed_dir", 1.0, marks=pytest.mark.nightly),
    ],
)
def test_drafts_and_forced_tokens_change_no_token(
    request: pytest.FixtureRequest,
    sink: CollectingSink,
    monkeypatch: pytest.MonkeyPatch,
    model: str,
    temperature: float,
) -> None:
    make_drafts_free(monkeypatch)
    model_dir: Path = request.getfixturevalue(model)
    wish = partial(SamplingWish, temperature=temperature)
    points = {"type": "array", "items": _POINT, "minItems": 2}
    requests = [
        replace(formed(points, max_tokens=50), sampling=wish(seed=1)),
        *(
            replace(
                formed(None, max_tokens=50, tools=functions("Place", "Wait"), tool_choice=choice),
                sampling=wish(seed=n),
            )
            for n, choice in enumerate((ToolChoice(mode="any"), ToolChoice()))
        ),
        replace(formed(_POINT, max_tokens=50, tools=functions("Place")), sampling=wish(seed=8)),
        ask("tell me", max_tokens=40, sampling=Sampling(temperature=temperature, seed=5)),
    ]
    _Drafting.accepted, name = 0, f"{model}-{temperature}"
    plain = start(model_dir, sink, runner=_Plain)
    before = [
        finished(submit(plain, f"plain-{name}-{n}", one)).token_ids
        for n, one in enumerate(requests)
    ]
    plain.close(0)
    drafting = start(model_dir, sink, runner=_Drafting)
    try:
        alone = [
            finished(submit(drafting, f"drafts-{name}-{n}", one)).token_ids
            for n, one in enumerate(requests)
        ]
        handles = [submit(drafting, f"together-{name}-{n}", one) for n, one in enumerate(requests)]
        together = [finished(handle).token_ids for handle in handles]
    finally:
        drafting.close(0)
    assert alone == before
    assert together == before
    assert _Drafting.accepted


def test_a_schema_that_cannot_be_kept_is_refused_if_the_caller_is_strict(
    engine: BatchEngine,
) -> None:
    odd = {"type": "array", "items": {"type": "boolean"}, "uniqueItems": True, "maxItems": 3}
    with pytest.raises(InvalidRequest, match="uniqueItems"):
        engine.prepare(formed(odd, is_strict=True))
    answer = finished(submit(engine, "odd", formed(odd)))
    check(answer, {"type": "array", "items": {"type": "boolean"}, "maxItems": 3})
