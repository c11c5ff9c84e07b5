"""The head of a model drafts for it: its guesses are those of its arithmetic, no token changes."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import mlx.core as mx
import pytest
import structlog
from mlx_lm.models.cache import KVCache

from domain.kv.plan import DeviceMemory
from domain.model.registry import DRAFT_HEAD, NO_DRAFTER, ModelEntry
from domain.values import Ability, Sampling
from tests.support.day_and_night import in_turn
from tests.support.models.disk_bench import DiskBench
from tests.support.models.kv_sequences import random_tokens
from tests.support.models.networks_with_states import QWEN3_5, QWEN3_5_MOE
from tests.support.models.runner_probe import BLOCK, Bench, OnlyEven, make_drafts_free
from tests.support.models.tiny_architectures import LLAMA, QWEN3_NEXT, VOCABULARY, Architecture
from tests.support.models.tiny_heads import (
    as_converted,
    as_published,
    knowing_head,
    knowing_network,
    make_tiny_qwen,
    random_head,
    write_shards,
)
from worker.engine.mlx.drafting import speculation as module
from worker.engine.mlx.drafting.speculation import DrafterSource
from worker.engine.mlx.memory.at_load import parameter_bytes
from worker.engine.mlx.memory.device import ProcessDevice
from worker.engine.mlx.model import draft_head as head_module
from worker.engine.mlx.model.draft_head import (
    HeadDrafter,
    MtpHead,
    draft_head,
    draft_loader,
    load_head,
    read_head,
    text_model,
    warmed,
)
from worker.engine.mlx.model.loader import load_weights
from worker.engine.mlx.rows.ragged_cache import install_ragged_attention
from worker.engine.mlx.runner import BatchRunner
from worker.engine.ports import Admission

#: A network, and its head.
Draft: TypeAlias = tuple[Any, MtpHead]

TOKENS = 40
SAMPLED = Sampling(temperature=0.3, top_p=0.9, seed=5)
with_heads = pytest.mark.parametrize(
    "architecture", [QWEN3_5, QWEN3_5_MOE, QWEN3_NEXT], ids=lambda a: a.name
)


@dataclass
class Row:
    uid: int
    tokens: list[int]


def states_of(network: Any, tokens: Sequence[int]) -> mx.array:
    """Return what the output head reads after each token, [tokens, dim]."""
    states: mx.array = text_model(network).model(mx.array([tokens]))
    return states[0]


def expected(draft: Draft, tokens: Sequence[int], start: int, count: int) -> list[int]:
    """Return what the head drafts after some tokens, of which it sees those from a place on.

    All pairs of a state and the next token are computed at once, by the formula of vLLM.
    """
    network, head = draft
    text, state = text_model(network), states_of(network, tokens[:-1])[start:]
    after, caches, drafted = list(tokens[start + 1 :]), [KVCache()], []
    for _ in range(count):
        embedded = text.model.embed_tokens(mx.array(after))
        pair = [head.pre_fc_norm_embedding(embedded), head.pre_fc_norm_hidden(state)]
        hidden = mx.concatenate(pair, axis=-1) @ head.fc.weight.T
        mask = "causal" if len(after) > 1 else None
        state = head.norm(head.layers[0](hidden[None], mask, caches[0])[0])[-1:]
        after = mx.argmax(text.lm_head(state), axis=-1).tolist()  # type: ignore[assignment]  # one axis
        drafted += after
    return drafted


@with_heads
def test_each_draft_is_what_the_head_computes(architecture: Architecture) -> None:
    network = architecture.make(mx.float32)
    install_ragged_attention(network)
    draft = network, draft_head(network, random_head(network))
    drafter = HeadDrafter(*draft)
    rows = [Row(uid, random_tokens(length, uid)) for uid, length in enumerate((1, 40, 9))]
    starts = [len(row.tokens) - 1 for row in rows]
    for row in rows:
        # Its last token, as the first decode step reads it.
        drafter.observe([row], states_of(network, row.tokens)[-1:], [1], [1])
    for count, accepted in ((4, (0, 3, 4)), (1, (1, 0, 0)), (5, (5, 2, 0))):
        drawn = [(row.uid + 7 * count) % VOCABULARY for row in rows]
        drafts = drafter.propose(rows, drawn, count)
        states, lengths, kept = [], [], []
        for row, token, found, right, start in zip(
            rows, drawn, drafts, accepted, starts, strict=True
        ):
            assert found == expected(draft, [*row.tokens, token], start, count)
            piece = [token, *found]
            states.append(states_of(network, [*row.tokens, *piece])[-len(piece) :])
            lengths.append(len(piece))
            kept.append(1 + right)
            row.tokens += piece[: 1 + right]
        drafter.observe(rows, mx.concatenate(states), lengths, kept)
    alone = drafter.propose(rows[1:2], [3], 3)
    assert alone == [expected(draft, [*rows[1].tokens, 3], starts[1], 3)]


def test_states_beyond_the_limit_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_module, "STATES_MAX", 6)
    network = QWEN3_5.make(mx.float32)
    install_ragged_attention(network)
    draft = network, draft_head(network, random_head(network))
    drafter, row = HeadDrafter(*draft), Row(1, random_tokens(20, 1))
    states = states_of(network, row.tokens)
    for at in range(20):
        seen = Row(1, row.tokens[: at + 1])
        drafter.observe([seen], states[at : at + 1], [1], [1])
    assert drafter.propose([row], [2], 3) == [expected(draft, [*row.tokens, 2], 14, 3)]
    drafter.drop([1, 7])
    drafter.observe([row], states[-1:], [1], [1])
    assert drafter.propose([row], [2], 2) == [expected(draft, [*row.tokens, 2], 19, 2)]


def test_states_of_other_rows_are_held_within_the_memory_that_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(head_module, "STATES_MAX", 6)
    network = QWEN3_5.make(mx.float32)
    install_ragged_attention(network)
    drafter = HeadDrafter(network, draft_head(network, random_head(network)))
    rows = [Row(1, random_tokens(9, 1)), Row(2, random_tokens(9, 2))]
    # Of eight states of a pass, six belong to drafts that were not accepted.
    for _ in range(4):
        for row in rows:
            row.tokens.append(3)
        drafter.observe(
            rows, mx.zeros((8, network.args.text_config["hidden_size"])), [4, 4], [1, 1]
        )
    for row in rows:
        waiting = drafter._rows[row.uid].waiting
        assert sum(states.shape[0] for states, *_ in waiting) <= len(rows) * 6
        assert drafter._rows[row.uid].count == len(waiting) == 1


class _NoLookup:
    """A text in which nothing comes back."""

    agreement = 0.0

    def __init__(self, tokens: Sequence[int]) -> None:
        del tokens

    def propose(self, count: int) -> list[int]:
        del count
        return []


@pytest.fixture
def head_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the head drafts, and its drafts cost nothing."""
    make_drafts_free(monkeypatch)
    monkeypatch.setattr(module, "PromptLookup", _NoLookup)


@cache
def knowing(architecture: Architecture) -> tuple[Any, DrafterSource]:
    network = knowing_network(architecture)
    return network, warmed(network, draft_head(network, knowing_head(network)))


def benches(architecture: Architecture) -> tuple[Bench, Bench]:
    """Return one without drafts, and one whose head knows most tokens."""
    network, draft = knowing(architecture)
    cold = Bench(architecture, network=network)
    cold.runner.speculates = False
    cold.runner.reset()
    return cold, Bench(architecture, network=network, draft=draft)


@pytest.mark.usefixtures("head_alone")
@in_turn(
    "architecture, sampling",
    [QWEN3_5, QWEN3_5_MOE, QWEN3_NEXT],
    {"greedy": Sampling(temperature=0), "sampled": SAMPLED},
)
def test_tokens_are_those_without_a_head_alone_and_together(
    architecture: Architecture, sampling: Sampling
) -> None:
    cold, bench = benches(architecture)
    prompts = [random_tokens(length, length) for length in (5, 33, 70)]
    plain = [
        cold.join_as(replace(cold.admission(prompt, TOKENS, sampling), logprobs=3))
        for prompt in prompts
    ]
    cold.finish()
    assert bench.run_alone(prompts[0], TOKENS, sampling).tokens == plain[0].tokens
    runs = [
        bench.join_as(replace(bench.admission(prompt, TOKENS, sampling), logprobs=3))
        for prompt in prompts
    ]
    bench.finish()
    assert [run.tokens for run in runs] == [run.tokens for run in plain]
    for run, other in zip(runs, plain, strict=True):
        values = [one.logprob for one in run.likelihoods]
        assert values == pytest.approx([one.logprob for one in other.likelihoods], abs=1e-3)
    figures = bench.runner.drafts
    share = 0.3 if sampling.temperature == 0 else 0.1
    assert figures.accepted_tokens > share * figures.drafted_tokens > 0


@pytest.mark.usefixtures("head_alone")
def test_contexts_are_reused_in_memory_and_from_the_disk(tmp_path: Path) -> None:
    network, draft = knowing(QWEN3_5)
    cold, _ = benches(QWEN3_5)
    prompt = random_tokens(50, 5)
    first = cold.run_alone(prompt, TOKENS)
    second_prompt = [*prompt, *first.tokens, *random_tokens(9, 6)]
    second = cold.run_alone(second_prompt, TOKENS)
    third_prompt = [*second_prompt, *second.tokens, *random_tokens(9, 7)]
    third = cold.run_alone(third_prompt, TOKENS)
    bench = DiskBench(QWEN3_5, tmp_path, network=network, draft=draft)
    assert bench.run_alone(prompt, TOKENS).tokens == first.tokens
    again = bench.run_alone(second_prompt, TOKENS)
    assert (again.tokens, again.cached > len(prompt)) == (second.tokens, True)
    bench.close()
    bench = DiskBench(QWEN3_5, tmp_path, network=network, draft=draft)
    restarted = bench.run_alone(third_prompt, TOKENS)
    assert (restarted.tokens, restarted.cached > len(second_prompt)) == (third.tokens, True)
    assert bench.runner.drafts.accepted_tokens
    bench.close()


class _Ahead(OnlyEven):
    """One that can look ahead."""

    looks_ahead = True

    def ahead(self) -> _Ahead:
        return copy(self)


@pytest.mark.usefixtures("head_alone")
@pytest.mark.parametrize("constraint", [OnlyEven, _Ahead])
def test_restricted_sequences_keep_their_tokens_alone_and_beside_one_with_a_head(
    constraint: type[OnlyEven],
) -> None:
    cold, bench = benches(QWEN3_5)
    prompts, found = [random_tokens(12, 3), random_tokens(40, 2), random_tokens(30, 4)], []
    # What a restricted row is expected to draw is the token before: some come twice in a row.
    rules = [replace(SAMPLED, temperature=20.0, top_p=1.0, top_k=12)] * 2 + [SAMPLED]
    for one in (cold, bench):
        asked = [one.admission(*each) for each in zip(prompts, [TOKENS] * 3, rules, strict=True)]
        asked[:2] = [replace(admission, constraint=constraint()) for admission in asked[:2]]
        alone = one.join_as(replace(asked[0], constraint=constraint()))
        one.finish()
        assert bool(one.runner.drafts.accepted_tokens) is (one is bench and constraint is _Ahead)
        runs = [one.join_as(admission) for admission in asked]
        one.finish()
        found.append([run.tokens for run in (alone, *runs)])
        assert found[-1][0] == found[-1][1]
    assert found[0] == found[1]
    assert bench.runner.drafts.accepted_tokens


@pytest.mark.usefixtures("head_alone")
def test_a_resumed_sequence_goes_on_with_the_same_tokens() -> None:
    cold, bench = benches(QWEN3_5)
    prompt = random_tokens(37, 3)
    whole = cold.run_alone(prompt, TOKENS, SAMPLED)
    for cut in (1, 10, 33):
        given = [*prompt, *whole.tokens[:cut]]
        run = bench.join(given, TOKENS - cut, SAMPLED, first_index=cut)
        bench.finish(run)
        assert run.tokens == whole.tokens[cut:]
    assert bench.runner.drafts.accepted_tokens


def same(one: dict[str, mx.array], other: dict[str, mx.array]) -> bool:
    return one.keys() == other.keys() and all(
        bool(mx.allclose(array, other[name], atol=1e-6).item()) for name, array in one.items()
    )


@pytest.mark.parametrize("architecture", [QWEN3_5, QWEN3_5_MOE], ids=lambda a: a.name)
def test_the_head_is_found_in_shards_of_each_form(
    architecture: Architecture, tmp_path: Path
) -> None:
    network = architecture.make(mx.float32)
    tensors = random_head(network)
    forms = {
        "published": as_published(network, tensors),
        "apart": as_published(network, tensors, experts_apart=True),
        "converted": as_converted(network, tensors),
        # Conversions that leave the head as it was.
        "mixed": as_converted(network, tensors)
        | {
            f"language_model.mtp.{name}": array - 1.0
            for name, array in tensors.items()
            if name.endswith("norm.weight") and float(mx.mean(array)) < 1.0
        },
    }
    for name, form in forms.items():
        assert same(read_head(write_shards(tmp_path / name, form)), tensors), name
    packed = write_shards(tmp_path / "packed", as_converted(network, tensors, bits=8))
    for directory, share in ((tmp_path / "published", 1.0), (packed, 0.9)):
        draft = load_head(ModelEntry(name="tiny", source=str(directory)), network, is_asked=True)
        assert draft is not None
        assert min(draft.memory.weights_bytes, draft.memory.row_bytes) > 0
        row, token = Row(1, random_tokens(30, 2)), 4
        drafter = draft.new_drafter()
        drafter.observe([row], states_of(network, row.tokens), [30], [30])
        whole = expected((network, draft_head(network, tensors)), [*row.tokens, token], 0, 1)
        # Rounding to 8 bits does not change the likeliest token here.
        assert drafter.propose([row], [token], 1) == [whole], share


@pytest.mark.parametrize("with_experts", [False, True], ids=["dense", "experts"])
def test_a_model_that_brings_a_head_drafts_with_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, with_experts: bool
) -> None:
    make_drafts_free(monkeypatch)
    monkeypatch.setattr(module, "PromptLookup", _NoLookup)
    source = ModelEntry(
        name="tiny", source=str(make_tiny_qwen(tmp_path / "model", with_experts=with_experts))
    )
    answers, figures = [], []
    for draft in (NO_DRAFTER, None, DRAFT_HEAD):
        runner = BatchRunner(load_weights=lambda: load_weights(source), block_tokens=BLOCK)
        runner.load_draft = draft_loader(replace(source, draft=draft))
        card = runner.load().card
        assert card.abilities is not None
        why = "" if draft == NO_DRAFTER else "a head of its own drafts too"
        assert card.abilities.speculation == Ability(why=why)
        greedy = Sampling(temperature=0)
        tokens = tuple(random_tokens(20, 3))
        admission = Admission(tokens=tokens, first_index=0, max_new_tokens=TOKENS, sampling=greedy)
        assert runner.insert(admission) is not None
        answer: list[int] = []
        while len(answer) < TOKENS:
            answer += [token for _, token, _ in runner.step().tokens]
        answers.append(answer)
        figures.append(runner.drafts.accepted_tokens)
    assert answers[0] == answers[1] == answers[2]
    assert (figures[0], figures[1]) == (0, figures[2])
    assert figures[2] > TOKENS // 2


def test_a_head_that_leaves_too_little_memory_is_left_out_unless_it_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    network = QWEN3_5.make(mx.float32)
    source = ModelEntry(
        name="tiny", source=str(write_shards(tmp_path, as_converted(network, random_head(network))))
    )
    memory = mx.get_active_memory() + 9 * parameter_bytes(draft_head(network, random_head(network)))
    device = DeviceMemory(
        memory_bytes=memory, device_bytes=memory, usable_bytes=memory, source="a test"
    )
    monkeypatch.setattr(ProcessDevice, "memory", lambda _: device)
    assert load_head(source, network, is_asked=True) is not None
    with structlog.testing.capture_logs() as logs:
        assert load_head(source, network, is_asked=False) is None
    assert [line["event"] for line in logs] == ["draft_head_unused"]


def test_a_model_without_a_head_of_use_is_loaded_with_a_clear_line(tmp_path: Path) -> None:
    network = QWEN3_5.make(mx.float32)
    tensors = random_head(network)
    plain = {n: x for n, x in as_converted(network, tensors).items() if ".mtp." not in n}
    without = ModelEntry(name="tiny", source=str(write_shards(tmp_path / "without", plain)))
    odd = as_converted(network, {**tensors}) | {"language_model.mtp.shared_head.weight": mx.ones(3)}
    del odd["language_model.mtp.fc.weight"]
    broken = ModelEntry(name="tiny", source=str(write_shards(tmp_path / "broken", odd)))
    other = LLAMA.make(mx.float32)
    cases = (
        (without, network, "the weights have no mtp tensors"),
        (without, other, "heads of the family llama are not known"),
        (broken, network, "missing ['fc.weight'], unknown ['shared_head.weight']"),
    )
    for source, model, why in cases:
        with structlog.testing.capture_logs() as logs:
            assert load_head(source, model, is_asked=True) is None
        (line,) = logs
        assert (line["event"], why in line["why"]) == ("draft_head_unused", True)
    with structlog.testing.capture_logs() as logs:
        assert load_head(without, network, is_asked=False) is None
    assert not logs
