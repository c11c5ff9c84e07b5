"""What every ``InferenceEngine`` promises, held against the scripted one and the real one."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from domain.chat.logprobs import TokenLogprob
from domain.errors import EngineFailure, PromptTooLong
from domain.model.registry import ModelEntry
from domain.values import Sampling, StopReason
from ops.clock import SystemClock
from tests.support.fakes.engine import FakeEngine
from tests.support.fakes.memory_runner import SmallMemoryRunner
from tests.support.models.engine_probe import (
    CollectingSink,
    ask,
    finished,
    ids_of,
    logprobs_in,
    submit,
    text_in,
)
from worker.engine.engine import BatchEngine

#: Tokens of a sequence in a step of the engine that speculates.
BURST = 5
LONG_ANSWER = "the quick brown fox " * 20


@pytest.fixture
def sink() -> CollectingSink:
    return CollectingSink()


@pytest.fixture
def poison() -> set[int]:
    """Tokens that make a step fail when the model reads them."""
    return set()


@pytest.fixture(
    params=[
        "scripted",
        "scripted in bursts",
        "scripted with little memory",
        pytest.param("tiny model", marks=pytest.mark.mlx),
        pytest.param("tiny model with reuse", marks=pytest.mark.mlx),
    ]
)
def engine(
    request: pytest.FixtureRequest, sink: CollectingSink, tmp_path: Path, poison: set[int]
) -> Iterator[BatchEngine]:
    if "scripted" in request.param:
        answers = {"long": LONG_ANSWER}
        # Of the longest answers two fit.
        small = SmallMemoryRunner(answers, memory_tokens=850) if "memory" in request.param else None
        with FakeEngine(sink, answers, max_batch_size=4, runner=small) as scripted:
            # Several tokens of a sequence in a step, as speculation gives them.
            scripted.runner.burst = BURST if "bursts" in request.param else 1
            scripted.runner.poison = poison
            yield scripted
        return
    from tests.support.models.poisoned_network import poisoned  # noqa: PLC0415 - needs mlx
    from tests.support.models.tiny_models import make_tiny_llama  # noqa: PLC0415 - needs mlx
    from worker.engine.mlx.model.loader import load_weights  # noqa: PLC0415 - needs mlx
    from worker.engine.mlx.runner import BatchRunner  # noqa: PLC0415 - needs mlx

    source = ModelEntry(
        name="tiny", source=str(make_tiny_llama(tmp_path / "tiny")), context_length=1000
    )
    real = BatchEngine(
        runner_factory=lambda: BatchRunner(
            load_weights=lambda: poisoned(load_weights(source), poison),
            prefill_step_tokens=64,
            kv_budget_bytes=1 << 26 if "reuse" in request.param else None,
            block_tokens=32,
        ),
        sink=sink,
        clock=SystemClock(),
        max_batch_size=4,
    )
    real.start()
    yield real
    real.close(0)


def test_a_generation_writes_numbered_items_that_join_to_its_outcome(
    engine: BatchEngine, sink: CollectingSink
) -> None:
    outcome = finished(submit(engine, "job-a", ask("long", max_tokens=40)))
    items = sink.numbered("job-a")
    assert [item.n for item in items] == list(range(1, len(items) + 1))
    assert outcome.next_item == len(items) + 1
    assert text_in(items) == outcome.text
    assert ids_of(items) == outcome.token_ids[: len(ids_of(items))]


def test_the_outcome_counts_and_hashes_its_tokens(engine: BatchEngine) -> None:
    request = ask("long", max_tokens=25)
    outcome = finished(submit(engine, "job-a", request))
    assert outcome.stop_reason is StopReason.MAX_TOKENS
    assert outcome.usage.completion_tokens == len(outcome.token_ids) == 25
    assert outcome.usage.prompt_tokens == len(engine.prepare(request).tokens)
    packed = struct.pack("<25I", *outcome.token_ids)
    assert outcome.token_hash == hashlib.sha256(packed).hexdigest()
    assert outcome.timings.first_token_ms >= outcome.timings.prefill_ms >= 0


def test_a_stop_text_ends_the_answer_before_it(engine: BatchEngine) -> None:
    whole = finished(submit(engine, "job-a", ask("long", max_tokens=60))).text
    stop = whole[20:23]
    outcome = finished(submit(engine, "job-b", ask("long", max_tokens=60, stop=(stop,))))
    assert outcome.stop_reason is StopReason.STOP_SEQUENCE
    assert outcome.stop_sequence == stop
    assert outcome.text == whole[: whole.index(stop)]


def test_a_cancelled_generation_keeps_what_it_emitted(
    engine: BatchEngine, sink: CollectingSink
) -> None:
    handle = submit(engine, "job-a", ask("long", max_tokens=900))
    sink.wait_for_items("job-a", 3)
    handle.cancel()
    handle.cancel()
    outcome = finished(handle)
    assert outcome.stop_reason in {StopReason.CANCELLED, StopReason.END_TURN}
    assert text_in(sink.numbered("job-a")) == outcome.text


def test_more_generations_than_places_all_end(engine: BatchEngine, sink: CollectingSink) -> None:
    handles = [submit(engine, f"job-{n}", ask("long", max_tokens=40)) for n in range(11)]
    texts = {finished(handle).text for handle in handles}
    assert len(texts) == 1
    reports = [progress for n in range(11) for progress in sink.progress(f"job-{n}")]
    waits = [progress for progress in reports if progress.phase == "queued"]
    assert waits
    assert all(wait.waiting_for is not None and 0 <= wait.total < 11 for wait in waits)
    assert engine.waiting_jobs() == ()


def test_a_resumed_generation_emits_only_what_is_missing(
    engine: BatchEngine, sink: CollectingSink
) -> None:
    request = ask("long", max_tokens=40, sampling=Sampling(temperature=1.0, seed=11))
    whole = finished(submit(engine, "job-whole", request))
    items = sink.numbered("job-whole")
    for cut in (0, 1, len(items) // 2, len(items) - 1, len(items)):
        name = f"job-cut-{cut}"
        outcome = finished(submit(engine, name, request, attempt=2, emitted=items[:cut]))
        assert [(i.n, i.body) for i in sink.numbered(name)] == [(i.n, i.body) for i in items[cut:]]
        assert (outcome.token_ids, outcome.text, outcome.next_item) == (
            whole.token_ids,
            whole.text,
            whole.next_item,
        )


def test_a_step_that_one_generation_breaks_fails_only_that_one(
    engine: BatchEngine, sink: CollectingSink, poison: set[int]
) -> None:
    requests = {
        f"job-{n}": ask(text, max_tokens=40, sampling=Sampling(temperature=1.0, seed=n), logprobs=1)
        for n, text in enumerate(["long", "culprit", "long"])
    }
    whole = {name: finished(submit(engine, f"{name}-alone", r)) for name, r in requests.items()}
    harmless = {*whole["job-0"].token_ids, *whole["job-2"].token_ids}
    index, token = next(
        (index, token)
        for index, token in enumerate(whole["job-1"].token_ids)
        if index > 4 and token not in harmless
    )
    poison.add(token)
    handles = {name: submit(engine, name, request) for name, request in requests.items()}
    for name in ("job-0", "job-2"):
        outcome = finished(handles[name])
        assert (outcome.failure, outcome.token_ids) == (None, whole[name].token_ids)
        items = sink.numbered(name)
        assert [item.n for item in items] == list(range(1, len(items) + 1))
        assert text_in(items) == outcome.text == whole[name].text
    failed = finished(handles["job-1"])
    assert failed.failure is not None
    assert failed.failure.retryable
    assert failed.failure.error == EngineFailure.code
    assert failed.token_ids == whole["job-1"].token_ids[: len(failed.token_ids)]
    assert index - BURST < len(failed.token_ids) <= index + 1
    poison.clear()
    later = submit(engine, "job-1", requests["job-1"], attempt=2, emitted=sink.numbered("job-1"))
    assert finished(later).token_ids == whole["job-1"].token_ids


def test_logprobs_cover_the_tokens_of_the_answer_on_request(
    engine: BatchEngine, sink: CollectingSink
) -> None:
    silent = submit(engine, "job-silent", ask("long", max_tokens=30))
    outcome = finished(submit(engine, "job-a", ask("long", max_tokens=30, logprobs=3)))
    assert finished(silent).logprobs is None
    assert logprobs_in(sink.numbered("job-silent")) == ()
    assert outcome.text == finished(silent).text
    logprobs = outcome.logprobs
    assert logprobs
    assert logprobs == logprobs_in(sink.numbered("job-a"))
    assert outcome.text.startswith(
        b"".join(one.token for one in logprobs).decode("utf-8", "replace")
    )
    assert [one.index for one in logprobs] == sorted({one.index for one in logprobs})
    for one in logprobs:
        assert len(one.top) == 3
        assert [value for _, value in one.top] == sorted((v for _, v in one.top), reverse=True)
        # Greedy: no token is likelier than the sampled one.
        assert one.logprob == one.top[0].logprob <= 0


def test_a_resumed_generation_emits_the_missing_logprobs_and_returns_all(
    engine: BatchEngine, sink: CollectingSink
) -> None:
    sampling = Sampling(temperature=1.0, seed=11)
    request = ask("long", max_tokens=40, sampling=sampling, logprobs=2)
    whole = finished(submit(engine, "job-whole", request))
    items = sink.numbered("job-whole")
    for cut in (0, 1, len(items) // 2, len(items)):
        name = f"job-cut-{cut}"
        outcome = finished(submit(engine, name, request, attempt=2, emitted=items[:cut]))
        whole_again = (*items[:cut], *sink.numbered(name))
        assert _rounded(logprobs_in(whole_again)) == _rounded(whole.logprobs)
        assert outcome.logprobs == logprobs_in(whole_again)


def _rounded(logprobs: Sequence[TokenLogprob] | None) -> list[object]:
    """Round: a resumed generation computes other pieces, whose last digits may differ."""
    assert logprobs is not None
    return [(one.index, one.token, pytest.approx(one.logprob, abs=1e-3)) for one in logprobs]


def test_the_limit_of_tokens_is_lowered_to_the_context(engine: BatchEngine) -> None:
    prompt = engine.prepare(ask("long", max_tokens=5000))
    assert prompt.max_tokens == engine.card().context_length - len(prompt.tokens)


def test_a_prompt_without_room_for_an_answer_is_refused(engine: BatchEngine) -> None:
    with pytest.raises(PromptTooLong) as refusal:
        engine.prepare(ask("word " * 2000))
    assert refusal.value.maximum == engine.card().context_length - 1


def test_many_threads_may_prepare_at_once(engine: BatchEngine) -> None:
    requests = [ask(f"word {n} " * (n + 1)) for n in range(30)]
    alone = [engine.prepare(request) for request in requests]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(engine.prepare, requests)) == alone


def test_a_closed_engine_takes_nothing_and_frees_its_waiters(engine: BatchEngine) -> None:
    prompt_source = ask("long", max_tokens=900)
    handles = [submit(engine, f"job-{n}", prompt_source) for n in range(6)]
    engine.close(0)
    outcomes = [finished(handle) for handle in handles]
    assert all(o.failure is None or o.failure.retryable for o in outcomes)
    assert not engine.is_alive()
    with pytest.raises(EngineFailure):
        submit(engine, "job-late", prompt_source)
