"""Vectors equal those of a single pass of mlx-lm, however the texts are cut and put together."""

from __future__ import annotations

import json
import math
from array import array
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from domain.chat.embedding import EmbeddingInputs, Vectors
from domain.chat.generation import GenerationTask, Outcome
from domain.chat.ports import GenerationHandle
from domain.chat.request import ChatRequest
from domain.errors import EngineLost, InvalidRequest, ModelUnusable
from domain.kv.plan import DeviceMemory
from domain.model.registry import ModelEntry, ModelKind, Pooling
from domain.values import JobId, SamplingWish, StopReason
from tests.support.models.tiny_embedder import DIMENSIONS, make_tiny_embedder, plain_vector
from worker.engine.mlx.embedding.engine import EmbeddingEngine, shape_of
from worker.engine.mlx.embedding.lane import SLICE_TOKENS_MIN, EmbeddingLane
from worker.engine.mlx.embedding.network import EmbeddingNetwork, VectorComputation, read_shape
from worker.engine.mlx.memory.device import EmbeddingAccount, ProcessDevice

pytestmark = pytest.mark.mlx

TEXTS = [[9, 8, 7], [5], list(range(20, 97)), [40, 41], [300] * 33, [9, 8, 7]]
TOLERANCE = 2e-4


def _loaded(directory: Path) -> EmbeddingNetwork:
    network = EmbeddingNetwork(directory)
    assert not list(network.load()), "a small model is read in one part"
    return network


def _floats(vector: bytes) -> list[float]:
    return array("f", vector).tolist()


def _entry(directory: Path, **fields: object) -> ModelEntry:
    entry = ModelEntry(name="notes", source=str(directory), kind=ModelKind.EMBEDDING)
    return entry if not fields else ModelEntry(**{**_fields(entry), **fields})  # type: ignore[arg-type]


def _fields(entry: ModelEntry) -> dict[str, object]:
    return {"name": entry.name, "source": entry.source, "kind": entry.kind}


def _lane(*, granted: bool = True, reserve: int = 1 << 30) -> EmbeddingLane:
    account = EmbeddingAccount(ProcessDevice(), reserve)
    account.is_granted = granted
    return EmbeddingLane(account)


def _task(engine: EmbeddingEngine, *texts: str | tuple[int, ...]) -> GenerationTask:
    inputs = EmbeddingInputs(texts=texts)
    prompt = engine.prepare(_request(inputs))
    return GenerationTask(
        job_id=JobId("job-1"), attempt=1, prompt=prompt, emitted=(), first_item=1, stop=()
    )


def _request(inputs: EmbeddingInputs) -> ChatRequest:
    return ChatRequest(
        model="notes", messages=(), max_tokens=0, sampling=SamplingWish(), embedding=inputs
    )


def _outcome(engine: EmbeddingEngine, lane: EmbeddingLane, task: GenerationTask) -> Outcome:
    handle = engine.submit(task)
    while lane.run_slice(0.01):
        pass
    outcome = handle.wait(0)
    assert outcome is not None
    return outcome


@pytest.mark.parametrize("pooling", ["lasttoken", "mean_tokens", "cls_token"])
def test_vectors_do_not_depend_on_slices_and_neighbours(tmp_path: Path, pooling: str) -> None:
    directory = make_tiny_embedder(tmp_path, pooling=pooling)
    network, shape = _loaded(directory), read_shape(directory)
    plain = [plain_vector(directory, ids, pooling=pooling, dimensions=48) for ids in TEXTS]
    for tokens in (1, 7, 40, 4096):
        computation = VectorComputation(network, TEXTS, shape.pooling, 48)
        while not computation.is_done:
            assert 1 <= computation.advance(tokens) <= max(1, min(tokens, 2048))
        vectors = [_floats(vector) for vector in computation.vectors().each()]
        assert len(vectors) == len(TEXTS)
        for ours, theirs in zip(vectors, plain, strict=True):
            assert ours == pytest.approx(theirs, abs=TOLERANCE)
            assert math.hypot(*ours) == pytest.approx(1.0, abs=1e-5)
        assert computation.cache_bytes == 0


def test_a_text_ends_with_the_end_of_text_of_its_tokenizer_and_ids_are_taken_as_they_are(
    tmp_path: Path,
) -> None:
    directory = make_tiny_embedder(tmp_path)
    lane = _lane()
    engine = EmbeddingEngine(_entry(directory), lane, None)
    task = _task(engine, "The quick brown fox", (9, 8, 7))
    text_ids, ids = list(task.prompt.tokens[:-3]), list(task.prompt.tokens[-3:])
    assert text_ids[-1] == 0, "the end of text"
    assert (ids, task.prompt.lengths) == ([9, 8, 7], (len(text_ids), 3))
    outcome = _outcome(engine, lane, task)
    assert isinstance(outcome.vectors, Vectors)
    assert outcome.usage.prompt_tokens == len(task.prompt.tokens)
    for vector, expected in zip(outcome.vectors.each(), (text_ids, ids), strict=True):
        plain = plain_vector(directory, expected, pooling="lasttoken", dimensions=DIMENSIONS)
        assert _floats(vector) == pytest.approx(plain, abs=TOLERANCE)


def test_a_conversion_without_pooling_takes_that_of_the_configuration(tmp_path: Path) -> None:
    directory = make_tiny_embedder(tmp_path, pooling=None)
    assert read_shape(directory).pooling is Pooling.LAST
    assert shape_of(_entry(directory, pooling=Pooling.MEAN))[1].pooling is Pooling.MEAN


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"use_bidirectional_attention": True}, "no decoder"),
        ({"model_type": "bert"}, "no model type 'bert'"),
    ],
)
def test_models_that_cannot_be_computed_are_refused(
    tmp_path: Path, change: dict[str, object], why: str
) -> None:
    directory = make_tiny_embedder(tmp_path)
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(ModelUnusable, match=why):
        read_shape(directory)


def test_foreign_modules_and_missing_files_are_refused(tmp_path: Path) -> None:
    directory = make_tiny_embedder(tmp_path / "model")
    modules = [{"type": "sentence_transformers.models.Dense"}]
    (directory / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ModelUnusable, match="Dense"):
        read_shape(directory)
    engine = EmbeddingEngine(_entry(tmp_path / "missing"), _lane(), None)
    assert engine.card().fingerprint == ""
    with pytest.raises(ModelUnusable, match="notes"):
        engine.prepare(_request(EmbeddingInputs(texts=("a",))))


@pytest.mark.parametrize(
    ("inputs", "why"),
    [
        (EmbeddingInputs(texts=("a", "long " * 600)), "input 1 is too long"),
        (EmbeddingInputs(texts=("x" * 2_000_000,)), "input 0 is too long"),
        (EmbeddingInputs(texts=((1,) * 513,)), "513 tokens > 512"),
        (EmbeddingInputs(texts=((512,),)), "token id 512"),
        (EmbeddingInputs(texts=("a",), dimensions=65), "at most 64"),
        (EmbeddingInputs(texts=((1,) * 500,) * 601), "300000 tokens"),
        (EmbeddingInputs(texts=("a",) * 65_537), "at most 65536 texts"),
    ],
)
def test_texts_that_do_not_fit_are_refused_and_not_cut(
    tmp_path: Path, inputs: EmbeddingInputs, why: str
) -> None:
    engine = EmbeddingEngine(_entry(make_tiny_embedder(tmp_path)), _lane(), None)
    with pytest.raises(InvalidRequest, match=why):
        engine.prepare(_request(inputs))


@pytest.mark.parametrize(
    ("account", "why"), [({"granted": False}, "no room"), ({"reserve": 1 << 20}, "restart")]
)
def test_a_model_without_room_beside_the_other_is_refused(
    tmp_path: Path, account: dict[str, Any], why: str
) -> None:
    lane = _lane(**account)
    engine = EmbeddingEngine(_entry(make_tiny_embedder(tmp_path)), lane, None)
    outcome = _outcome(engine, lane, _task(engine, "a"))
    assert outcome.failure is not None
    assert (outcome.failure.error, outcome.failure.retryable) == ("model_unusable", False)
    assert why in outcome.failure.message


def test_a_cancelled_request_ends_without_vectors_and_the_next_one_goes_on(tmp_path: Path) -> None:
    lane = _lane()
    engine = EmbeddingEngine(_entry(make_tiny_embedder(tmp_path)), lane, None)
    running, waiting, last = (engine.submit(_task(engine, (7,) * 400)) for _ in range(3))
    lane.run_slice(0.0)  # loads
    lane.run_slice(0.0)  # computes a part
    running.cancel()
    waiting.cancel()
    while lane.run_slice(0.01):
        pass
    ends = [handle.wait(0) for handle in (running, waiting, last)]
    assert [end.stop_reason for end in ends if end is not None] == [
        StopReason.CANCELLED,
        StopReason.CANCELLED,
        StopReason.END_TURN,
    ]
    assert ends[2] is not None
    assert ends[2].vectors is not None


def test_slices_stay_long_enough_on_a_slow_machine_and_grow_again(tmp_path: Path) -> None:
    account = EmbeddingAccount(ProcessDevice(), 1 << 30)
    account.is_granted = True
    now = 0.0
    tick_s = 1000.0

    def clock() -> float:
        nonlocal now
        now += tick_s
        return now

    lane = EmbeddingLane(account, clock=clock)
    engine = EmbeddingEngine(_entry(make_tiny_embedder(tmp_path)), lane, None)
    handle = engine.submit(_task(engine, *[(7,) * 500] * 4))
    slices = 1
    while lane.run_slice(0.025):
        slices += 1
    assert handle.wait(0) is not None
    # One slice loads, and each text ends with a shorter one.
    assert slices == 1 + 4 * math.ceil(500 / SLICE_TOKENS_MIN)
    tick_s = 1e-5
    handle = engine.submit(_task(engine, *[(7,) * 500] * 4))
    fast = 1
    while lane.run_slice(0.025):
        fast += 1
    assert handle.wait(0) is not None
    assert fast < slices / 4


def test_a_short_request_does_not_wait_for_the_end_of_a_long_one(tmp_path: Path) -> None:
    lane = _lane()
    first, second = (
        EmbeddingEngine(_entry(make_tiny_embedder(tmp_path / str(seed), seed=seed)), lane, None)
        for seed in (1, 2)
    )
    long = first.submit(_task(first, *[(7,) * 8] * 40, (5,) * 60))
    short, other, late = (
        engine.submit(_task(engine, (9, 8, 7))) for engine in (first, second, first)
    )
    ended: list[GenerationHandle] = []
    open_handles = [long, short, other, late]
    is_left = True
    while is_left:
        is_left = lane.run_slice(0.0)
        ended += [one for one in open_handles if one not in ended and one.wait(0) is not None]
    assert ended == [short, long, other, late], "the model is loaded again once"
    outcomes = [one.wait(0) for one in (short, late)]
    vectors = [outcome.vectors for outcome in outcomes if outcome is not None]
    assert vectors[0] == vectors[1]


def test_elements_that_are_no_numbers_end_their_request_alone(tmp_path: Path) -> None:
    lane = _lane()
    engine = EmbeddingEngine(_entry(make_tiny_embedder(tmp_path / "m")), lane, None)
    broken = make_tiny_embedder(tmp_path / "broken")
    weights = mx.load(str(broken / "model.safetensors"))
    assert isinstance(weights, dict)
    weights["norm.weight"] = weights["norm.weight"] * float("nan")
    mx.save_safetensors(str(broken / "model.safetensors"), weights, {"format": "mlx"})
    failing = EmbeddingEngine(_entry(broken), lane, None)
    outcome = _outcome(failing, lane, _task(failing, "a"))
    assert outcome.failure is not None
    assert (outcome.failure.error, outcome.failure.retryable) == ("engine_failure", False)
    assert "no numbers" in outcome.failure.message
    assert _outcome(engine, lane, _task(engine, "a")).vectors is not None


def test_a_closed_lane_leaves_its_requests_to_the_next_worker(tmp_path: Path) -> None:
    lane = _lane()
    engine = EmbeddingEngine(_entry(make_tiny_embedder(tmp_path)), lane, None)
    task = _task(engine, "a")
    handle = engine.submit(task)
    lane.close()
    outcome = handle.wait(0)
    assert outcome is not None
    assert outcome.failure is not None
    assert (outcome.failure.error, outcome.failure.retryable) == ("draining", True)
    with pytest.raises(EngineLost):
        engine.submit(task)


def test_a_second_model_takes_the_place_of_the_first(tmp_path: Path) -> None:
    lane = _lane()
    engines = [
        EmbeddingEngine(_entry(make_tiny_embedder(tmp_path / str(seed), seed=seed)), lane, None)
        for seed in (1, 2)
    ]
    found = [
        _outcome(engine, lane, _task(engine, "a")).vectors for engine in (*engines, engines[0])
    ]
    assert found[0] is not None
    assert found[0] != found[1]
    assert found[2] is not None
    assert _floats(found[0].data) == pytest.approx(_floats(found[2].data), abs=TOLERANCE)


def test_what_vectors_take_counts_in_no_account_of_the_contexts() -> None:
    device = _Device()
    account = EmbeddingAccount(device, 300)
    assert account.beside(device.memory()).usable_bytes == 600
    assert account.peak_bytes() == 1000
    account.begin_slice()
    device.active, device.peak = 1500, 5000  # weights of 500, and what a slice takes
    account.end_slice(500)
    device.peak = 1600  # was reset by the slice
    assert account.active_bytes() == 1000
    assert account.peak_bytes() == 1100


class _Device:
    def __init__(self) -> None:
        self.active = self.peak = 1000

    def memory(self) -> DeviceMemory:
        return DeviceMemory(memory_bytes=1000, device_bytes=1000, usable_bytes=900, source="test")

    def limit(self, *, memory_bytes: int, cache_bytes: int) -> None:
        raise AssertionError(memory_bytes, cache_bytes)

    def active_bytes(self) -> int:
        return self.active

    def peak_bytes(self) -> int:
        return self.peak
