"""The engine on a small real model: who shares a batch must not change what anybody says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from domain.chat.request import ChatRequest, Message, ToolCall
from domain.errors import InvalidRequest
from domain.model.registry import ModelEntry
from domain.values import Sampling, SamplingWish, StopReason
from ops.clock import SystemClock
from tests.support.models.engine_probe import CollectingSink, ask, finished, submit
from tests.support.models.samplings import FILTERED, GREEDY, PENALISED, SAMPLED
from tests.support.models.tiny_models import TEMPLATE, make_tiny_llama
from worker.engine.engine import BatchEngine
from worker.engine.mlx.model.loader import find_model, load_weights
from worker.engine.mlx.runner import BatchRunner
from worker.engine.ports import ModelLoadError

STRANGERS = (
    Sampling(temperature=1.3, seed=1),
    Sampling(temperature=0),
    Sampling(temperature=0.9, top_p=0.5, seed=3),
    Sampling(temperature=1.0, top_k=3, seed=4),
)


def start(
    model_dir: Path, sink: CollectingSink, *, batch: int = 8, budget_bytes: int | None = None
) -> BatchEngine:
    source = ModelEntry(name="tiny", source=str(model_dir))
    engine = BatchEngine(
        runner_factory=lambda: BatchRunner(
            load_weights=lambda: load_weights(source),
            prefill_step_tokens=32,
            kv_budget_bytes=budget_bytes,
            block_tokens=32,
        ),
        sink=sink,
        clock=SystemClock(),
        max_batch_size=batch,
    )
    engine.start()
    return engine


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("models") / "tiny-llama")


@pytest.fixture(scope="module", params=[None, 1 << 26], ids=["no-reuse", "reuse"])
def budget_bytes(request: pytest.FixtureRequest) -> int | None:
    given: int | None = request.param
    return given


@pytest.fixture(scope="module")
def sink(budget_bytes: int | None) -> CollectingSink:
    del budget_bytes  # one for each engine: the tests count items under the same names
    return CollectingSink()


@pytest.fixture(scope="module")
def engine(
    model_dir: Path, sink: CollectingSink, budget_bytes: int | None
) -> Iterator[BatchEngine]:
    engine = start(model_dir, sink, budget_bytes=budget_bytes)
    yield engine
    engine.close(0)


def tokens_of(engine: BatchEngine, name: str, request: ChatRequest) -> tuple[int, ...]:
    return finished(submit(engine, name, request)).token_ids


@pytest.mark.parametrize(
    "sampling",
    [GREEDY, SAMPLED, FILTERED, PENALISED],
    ids=["greedy", "sampled", "cut", "penalised"],
)
class TestSameSeed:
    def test_says_the_same_alone_batched_and_staggered(
        self, engine: BatchEngine, sink: CollectingSink, sampling: Sampling
    ) -> None:
        request = ask("tell me", max_tokens=30, sampling=sampling)
        name = f"same-{hash(sampling)}"
        alone = tokens_of(engine, f"{name}-alone", request)
        assert tokens_of(engine, f"{name}-again", request) == alone
        strangers = [
            submit(engine, f"{name}-{n}", ask("word " * (9 * n + 1), max_tokens=25, sampling=other))
            for n, other in enumerate(STRANGERS)
        ]
        batched = submit(engine, f"{name}-batched", request)
        sink.wait_for_items(f"{name}-batched", 5)
        staggered = submit(engine, f"{name}-staggered", request)
        assert finished(batched).token_ids == alone
        assert finished(staggered).token_ids == alone
        assert all(finished(stranger).failure is None for stranger in strangers)

    def test_says_the_same_resumed_at_every_fifth_item(
        self, engine: BatchEngine, sink: CollectingSink, sampling: Sampling
    ) -> None:
        request = ask("tell me more", max_tokens=31, sampling=sampling)
        name = f"resumed-{hash(sampling)}"
        whole = finished(submit(engine, name, request))
        items = sink.numbered(name)
        cuts = range(0, len(items) + 1, 5)
        handles = [
            submit(engine, f"{name}-{cut}", request, attempt=2, emitted=items[:cut]) for cut in cuts
        ]
        for cut, handle in zip(cuts, handles, strict=True):
            outcome = finished(handle)
            assert (outcome.token_ids, outcome.text) == (whole.token_ids, whole.text)
            assert [i.body for i in sink.numbered(f"{name}-{cut}")] == [i.body for i in items[cut:]]


def test_a_bias_of_a_token_that_the_model_lacks_is_refused_before_the_prompt_is_read(
    engine: BatchEngine,
) -> None:
    biased = Sampling(logit_bias=((5, 1.0), (2**31 - 1, 1.0)))
    with pytest.raises(InvalidRequest, match="logit_bias names the token 2147483647") as refused:
        engine.prepare(ask("x", sampling=biased))
    assert refused.value.field == "logit_bias"


def test_another_seed_says_something_else(engine: BatchEngine) -> None:
    said = {
        tokens_of(engine, f"seed-{n}", ask("x", max_tokens=12, sampling=Sampling(seed=n)))
        for n in range(6)
    }
    assert len(said) == 6


def test_top_k_of_one_is_greedy(engine: BatchEngine) -> None:
    only = Sampling(temperature=2.0, top_k=1, seed=9)
    greedy = tokens_of(engine, "k-greedy", ask("pick", max_tokens=20, sampling=GREEDY))
    assert tokens_of(engine, "k-one", ask("pick", max_tokens=20, sampling=only)) == greedy


def test_a_cancel_in_mid_decode_frees_the_place_and_changes_no_other_row(
    model_dir: Path,
) -> None:
    sink = CollectingSink()
    engine = start(model_dir, sink, batch=2)
    try:
        request = ask("stay", max_tokens=60, sampling=SAMPLED)
        alone = tokens_of(engine, "alone", request)
        stays = submit(engine, "stays", request)
        leaves = submit(engine, "leaves", ask("leave", max_tokens=1500, sampling=SAMPLED))
        waits = submit(engine, "waits", request)
        sink.wait_for_items("leaves", 5)
        leaves.cancel()
        outcome = finished(leaves)
        assert outcome.stop_reason is StopReason.CANCELLED
        assert 0 < len(outcome.token_ids) < 1500
        assert finished(stays).token_ids == alone
        assert finished(waits).token_ids == alone
    finally:
        engine.close(0)


def test_one_faulty_sampler_fails_alone(engine: BatchEngine) -> None:
    request = ask("good", max_tokens=25, sampling=SAMPLED)
    alone = tokens_of(engine, "fault-alone", request)
    good = submit(engine, "fault-good", request)
    bad = submit(engine, "fault-bad", ask("bad", sampling=Sampling(temperature=1, seed=2**70)))
    failure = finished(bad).failure
    assert failure is not None
    assert not failure.retryable
    assert finished(good).token_ids == alone
    assert tokens_of(engine, "fault-after", request) == alone


def test_a_running_stream_goes_on_while_a_long_prompt_is_read(
    engine: BatchEngine, sink: CollectingSink
) -> None:
    runs = submit(engine, "runs", ask("run", max_tokens=400, sampling=SAMPLED))
    sink.wait_for_items("runs", 3)
    long = submit(engine, "long", ask("word " * 300, max_tokens=4, sampling=GREEDY))
    sink.wait_for_items("long", 1)
    before = len(sink.numbered("runs"))
    assert len(finished(long).token_ids) == 4
    assert len(sink.numbered("runs")) > before
    runs.cancel()
    finished(runs)
    done = [p.done for p in sink.progress("long") if p.phase == "prefill"]
    assert done == sorted(set(done))
    assert len(done) > 5


def test_items_join_to_what_the_tokenizer_decodes(engine: BatchEngine, model_dir: Path) -> None:
    import mlx_lm.utils  # noqa: PLC0415 - only this test decodes by itself

    tokenizer = mlx_lm.utils.load_tokenizer(model_dir)
    hot = Sampling(temperature=3.0, seed=8)
    outcome = finished(submit(engine, "utf8", ask("noise", max_tokens=200, sampling=hot)))
    assert not outcome.thinking
    assert "\ufffd" in outcome.text, "the noise holds no broken characters: choose another seed"
    assert outcome.text == tokenizer.decode(list(outcome.token_ids))


def test_the_prompt_that_opens_a_reasoning_section_gives_thinking(engine: BatchEngine) -> None:
    outcome = finished(submit(engine, "think", ask("why", max_tokens=10, thinking=True)))
    assert outcome.thinking
    assert not outcome.text


class TestTemplates:
    REFUSING = (
        "{%- for message in messages -%}"
        "{%- if (message.role == 'user') != (loop.index0 % 2 == 0) -%}"
        "{{ raise_exception('roles must alternate') }}{%- endif -%}"
        "[{{ message.role }}:{{ message.content }}]{%- endfor -%}"
    )

    def render(self, tmp_path: Path, template: str, *messages: Message) -> str:
        engine = start(make_tiny_llama(tmp_path / "m", template=template), CollectingSink())
        try:
            request = ChatRequest(
                model="any", messages=messages, max_tokens=5, sampling=SamplingWish()
            )
            import mlx_lm.utils  # noqa: PLC0415 - only this test decodes by itself

            tokenizer = mlx_lm.utils.load_tokenizer(tmp_path / "m")
            text: str = tokenizer.decode(list(engine.prepare(request).tokens))
            return text
        finally:
            engine.close(0)

    def test_one_that_knows_only_two_roles_gets_two(self, tmp_path: Path) -> None:
        said = self.render(
            tmp_path,
            self.REFUSING,
            Message(role="system", content="Be brief."),
            Message(role="user", content="Time?"),
            Message(
                role="assistant",
                content="",
                tool_calls=(ToolCall(id="c", name="clock", arguments={"zone": "UTC"}),),
            ),
            Message(role="tool", content="12:00", tool_call_id="c"),
        )
        assert said == (
            '[user:Be brief.\n\nTime?][assistant:\n[call clock {"zone":"UTC"}]][user:12:00]'
        )

    def test_one_that_refuses_everything_is_an_invalid_request(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidRequest, match="no words"):
            self.render(
                tmp_path, "{{ raise_exception('no words') }}", Message(role="user", content="Hi")
            )

    def test_a_lone_surrogate_is_replaced(self, tmp_path: Path) -> None:
        said = self.render(tmp_path, TEMPLATE, Message(role="user", content="a\ud800b"))
        assert "a\ufffdb" in said


class TestLoading:
    @pytest.mark.parametrize("model_id", ["/no/such/model", "./nothing", "nothing"])
    def test_a_missing_directory_says_what_was_tried(self, model_id: str) -> None:
        with pytest.raises(ModelLoadError, match="there is no directory"):
            find_model(model_id)

    def test_a_directory_without_weights_says_what_is_missing(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text("{}")
        with pytest.raises(ModelLoadError, match="weights missing"):
            find_model(str(tmp_path))

    def test_a_hub_id_that_cannot_be_fetched_says_so(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        with pytest.raises(ModelLoadError, match="could not be fetched"):
            find_model("nobody-at-all/no-such-model")

    def test_the_fingerprint_follows_content_and_not_place(self, tmp_path: Path) -> None:
        first, copy, other = (
            load_weights(
                ModelEntry(name="tiny", source=str(make_tiny_llama(tmp_path / name, seed=seed))),
                digests=tmp_path / "digests.json",
            ).model.card.fingerprint
            for name, seed in (("one", 7), ("copy", 7), ("other", 8))
        )
        assert first == copy
        assert first != other
        assert json.loads((tmp_path / "digests.json").read_text()) == {}, "they changed just now"
