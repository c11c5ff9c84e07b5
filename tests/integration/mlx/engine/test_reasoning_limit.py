"""A random network that would think for ever: its reasoning is closed, and nothing else changes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from domain.audit.replay import Verdict
from domain.chat.generation import GenerationTask, Outcome, ThinkingLimit
from domain.chat.ports import GenerationHandle
from domain.chat.request import ChatRequest, Message
from domain.model.registry import ModelEntry
from domain.values import JobId, SamplingWish, StopReason
from ops.clock import SystemClock
from tests.support.day_and_night import by_day, examples
from tests.support.models.engine_probe import CollectingSink, finished, ids_of, submit
from tests.support.models.replay_world import ReplayWorld
from tests.support.models.tiny_models import SPECIAL, TEMPLATE, make_tiny_llama
from worker.engine.engine import BatchEngine
from worker.engine.mlx.model.loader import load_weights
from worker.engine.mlx.runner import BatchRunner
from worker.engine.ports import StepResult

_BLOCK = 32
#: Keys and values of two layers with two heads of 16 numbers.
_TOKEN_BYTES = 2 * 2 * 2 * 16 * 4
_MAX_TOKENS = 40
_FORM: dict[str, Any] = {
    "type": "object",
    "properties": {"kind": {"enum": ["point", "vector"]}, "at": {"type": "boolean"}},
    "required": ["kind", "at"],
    "additionalProperties": False,
}


class _Watched(BatchRunner):
    """Counts who has to give way."""

    gave_way = 0

    def step(self) -> StepResult:
        step = super().step()
        _Watched.gave_way += len(step.preempted)
        return step


@dataclass(frozen=True, slots=True)
class World:
    """A model that runs, what it says, and its closing tag."""

    model: Path
    engine: BatchEngine
    sink: CollectingSink
    tag: tuple[int, ...]


def start(model: Path, sink: CollectingSink, budget_bytes: int | None = None) -> BatchEngine:
    engine = BatchEngine(
        runner_factory=lambda: _Watched(
            load_weights=partial(load_weights, ModelEntry(name=str(model), source=str(model))),
            prefill_step_tokens=32,
            kv_budget_bytes=budget_bytes,
            block_tokens=_BLOCK,
            reuse=False,
        ),
        sink=sink,
        clock=SystemClock(),
        max_batch_size=8,
    )
    engine.start()
    return engine


@pytest.fixture(scope="module", params=["one_token", "several_tokens"])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    place = tmp_path_factory.mktemp("models") / request.param
    if request.param == "one_token":
        make_tiny_llama(place)
    else:
        marks = ("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>")
        make_tiny_llama(
            place,
            template=TEMPLATE.replace("<think>", "<|open|>think<|sep|>"),
            special=(*(one for one in SPECIAL if "think" not in one), *marks),
        )
    sink = CollectingSink()
    engine = start(place, sink)
    whole = finished(submit(engine, "tag", thought(limit=0, seed=1)))
    assert (whole.usage.reasoning_tokens > 1) == (request.param != "one_token")
    yield World(place, engine, sink, whole.token_ids[: whole.usage.reasoning_tokens])
    engine.close(0)


def thought(
    *, seed: int, limit: int | None, max_tokens: int = _MAX_TOKENS, **more: Any
) -> ChatRequest:
    return ChatRequest(
        model="any",
        messages=(Message(role="user", content="go on"),),
        max_tokens=max_tokens,
        sampling=SamplingWish(temperature=0.8, seed=seed),
        thinking=True,
        thinking_limit=ThinkingLimit(tokens=limit),
        **more,
    )


def resumed(
    world: World, name: str, request: ChatRequest, said: tuple[int, ...]
) -> GenerationHandle:
    """Go on after any token, also where no item ends."""
    prompt = world.engine.prepare(request)
    task = GenerationTask(
        job_id=JobId(name), attempt=2, prompt=prompt, emitted=said, first_item=1, stop=request.stop
    )
    handle = world.engine.submit(task)
    handle.release()
    return handle


def gist(outcome: Outcome) -> tuple[object, ...]:
    usage = outcome.usage
    return outcome.token_ids, outcome.thinking, outcome.text, usage.reasoning_tokens


# Fixed examples: an answer that opens a second section by chance exceeds the bound by its tags.
@settings(
    examples(3, night=6),
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(limit=st.integers(0, _MAX_TOKENS + 3), seed=st.integers(0, 2**63 - 1), data=st.data())
def test_reasoning_is_closed_at_its_limit_and_resumed_anywhere(
    world: World, limit: int, seed: int, data: st.DataObject
) -> None:
    name = f"limit-{limit}-{seed}"
    free = finished(submit(world.engine, f"{name}-free", thought(seed=seed, limit=None)))
    request = thought(seed=seed, limit=limit)
    whole = finished(submit(world.engine, name, request))
    most = max(limit, len(world.tag))
    assert whole.usage.reasoning_tokens <= most
    # Up to the tag it thinks what it would have thought.
    kept = min(len(whole.token_ids), max(0, limit - len(world.tag)))
    assert whole.token_ids[:kept] == free.token_ids[:kept]
    if free.usage.reasoning_tokens > most:
        assert whole.token_ids[kept:most] == world.tag[: _MAX_TOKENS - kept]
    places = range(len(whole.token_ids) + 1)
    near = [place for place in places if abs(place - kept) <= len(world.tag)]
    others = data.draw(st.lists(st.sampled_from(places), max_size=3))
    handles = [
        resumed(world, f"{name}-{place}", request, whole.token_ids[:place])
        for place in sorted({*near, *others})
    ]
    for handle in handles:
        assert gist(finished(handle)) == gist(whole)


@pytest.mark.parametrize("limit", [6, 17])
def test_items_go_on_as_they_were_from_any_item(world: World, limit: int) -> None:
    request = thought(seed=5, limit=limit)
    name = f"items-{limit}"
    whole = finished(submit(world.engine, name, request))
    items = world.sink.numbered(name)
    assert ids_of(items) == whole.token_ids
    cuts = range(0, len(items), by_day(3, night=1))
    handles = [
        submit(world.engine, f"{name}-{cut}", request, attempt=2, emitted=items[:cut])
        for cut in cuts
    ]
    for cut, handle in zip(cuts, handles, strict=True):
        assert gist(finished(handle)) == gist(whole)
        again = world.sink.numbered(f"{name}-{cut}")
        assert [item.body for item in again] == [item.body for item in items[cut:]]


def test_the_answer_behind_it_is_held_to_its_schema(world: World) -> None:
    requests = [
        thought(seed=n, limit=9 + n + len(world.tag), answer_schema=_FORM, max_tokens=80)
        for n in range(4)
    ]
    alone = [
        finished(submit(world.engine, f"form-{n}", request)) for n, request in enumerate(requests)
    ]
    handles = [submit(world.engine, f"forms-{n}", request) for n, request in enumerate(requests)]
    for outcome, handle in zip(alone, handles, strict=True):
        # Together they say what each says alone, held or free, closing or not.
        assert gist(finished(handle)) == gist(outcome)
        assert outcome.stop_reason is StopReason.END_TURN
        jsonschema_rs.validator_for(_FORM).validate(json.loads(outcome.text))
        assert outcome.thinking
    items = world.sink.numbered("form-3")
    handles = [
        submit(world.engine, f"form-3-{cut}", requests[3], attempt=2, emitted=items[:cut])
        for cut in range(0, len(items), 3)
    ]
    assert {gist(finished(again)) for again in handles} == {gist(alone[3])}


def test_a_stop_text_counts_behind_it(world: World) -> None:
    whole = finished(submit(world.engine, "unstopped", thought(seed=9, limit=8)))
    stop = whole.text[2:4]
    assert stop
    stopped = finished(submit(world.engine, "stopped", thought(seed=9, limit=8, stop=(stop,))))
    assert stopped.stop_reason is StopReason.STOP_SEQUENCE
    assert stopped.text == whole.text[: whole.text.index(stop)]
    assert stopped.usage.reasoning_tokens == whole.usage.reasoning_tokens == 8


def test_a_tag_that_max_tokens_cuts_is_still_reasoning(world: World) -> None:
    cut = finished(submit(world.engine, "cut", thought(seed=2, limit=0, max_tokens=1)))
    assert (len(cut.token_ids), cut.usage.reasoning_tokens, cut.text) == (1, 1, "")
    assert cut.stop_reason is StopReason.MAX_TOKENS


def test_who_gives_way_and_comes_back_is_closed_at_the_same_place(world: World) -> None:
    requests = [thought(seed=seed, limit=70, max_tokens=110) for seed in range(4)]
    handles = [submit(world.engine, f"roomy-{n}", request) for n, request in enumerate(requests)]
    roomy = [gist(finished(handle)) for handle in handles]
    # Room for four prompts, but not for four answers as well.
    blocks = 1 + len(world.engine.prepare(requests[0]).tokens) // _BLOCK
    tight = start(world.model, world.sink, (4 * blocks + 4) * _BLOCK * _TOKEN_BYTES)
    before = _Watched.gave_way
    try:
        handles = [submit(tight, f"tight-{n}", request) for n, request in enumerate(requests)]
        assert [gist(finished(handle)) for handle in handles] == roomy
    finally:
        tight.close(0)
    assert _Watched.gave_way > before


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplayWorld]:
    directory = tmp_path_factory.mktemp("data")
    with ReplayWorld(directory, str(make_tiny_llama(directory / "tiny"))) as logged:
        yield logged


@pytest.mark.parametrize("items", [1, 4, 12])
def test_a_second_attempt_and_a_replay_close_it_at_the_same_token(
    logged: ReplayWorld, items: int
) -> None:
    request = thought(seed=11, limit=None)
    request = ChatRequest.from_bytes(
        json.dumps(
            json.loads(request.to_bytes()) | {"thinking_limit": {"tokens": None, "share": 0.3}}
        ).encode()
    )
    (job,) = logged.run(request)
    first = logged.answer(job)["token_ids"]
    again = logged.resume(job, items=items)
    assert logged.answer(again)["token_ids"] == first
    for one in (job, again):
        done = logged.replay(one)
        assert (done.verdict, done.tokens) == (Verdict.SAME, len(first))
