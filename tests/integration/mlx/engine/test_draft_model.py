"""A small network drafts for a large one: its guesses are its own, and no token changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from domain.kv.plan import DrafterMemory
from domain.model.registry import ModelEntry
from tests.support.models.kv_sequences import random_tokens
from tests.support.models.networks_with_states import LFM2, MAMBA, QWEN3_5
from tests.support.models.runner_probe import Bench, make_drafts_free
from tests.support.models.tiny_architectures import GEMMA3, LLAMA, VOCABULARY, Architecture
from tests.support.models.tiny_models import make_tiny_llama
from worker.engine.mlx.drafting import speculation as module
from worker.engine.mlx.drafting.speculation import DrafterSource
from worker.engine.mlx.kv.window_cache import make_row_caches
from worker.engine.mlx.model import draft_model
from worker.engine.mlx.model.draft_model import ModelDrafter, load_draft
from worker.engine.mlx.rows.ragged_states import find_row_support
from worker.engine.ports import ModelLoadError

TOKENS = 40


@dataclass
class Row:
    uid: int
    tokens: list[int]


def drafting(architecture: Architecture) -> tuple[Any, Callable[[], ModelDrafter]]:
    network = architecture.make(mx.float32)
    return network, partial(ModelDrafter, network, find_row_support(network), VOCABULARY)


def draft_of(architecture: Architecture) -> DrafterSource:
    return DrafterSource(drafting(architecture)[1], DrafterMemory(weights_bytes=0, row_bytes=0))


def greedy(network: Any, tokens: Sequence[int], count: int) -> list[int]:
    caches, found = make_row_caches(network), list(tokens)
    logits = network(mx.array([found]), cache=caches)
    for _ in range(count):
        found += mx.argmax(logits[0, -1:], axis=-1).tolist()  # type: ignore[arg-type]  # one axis
        logits = network(mx.array([found[-1:]]), cache=caches)
    return found[len(tokens) :]


@pytest.mark.parametrize("architecture", [LLAMA, GEMMA3, QWEN3_5, LFM2], ids=lambda a: a.name)
def test_each_draft_is_what_the_network_draws_next(architecture: Architecture) -> None:
    network, new_drafter = drafting(architecture)
    drafter = new_drafter()
    rows = [Row(uid, random_tokens(length, uid)) for uid, length in enumerate((1, 40, 9))]
    for count, accepted in ((4, (0, 3, 4)), (1, (1, 0, 0)), (5, (5, 2, 0))):
        drawn = [(row.uid + 7 * count) % VOCABULARY for row in rows]
        drafts = drafter.propose(rows, drawn, count)
        for row, token, found, kept in zip(rows, drawn, drafts, accepted, strict=True):
            assert found == greedy(network, [*row.tokens, token], count)
            row.tokens += [token, *found[:kept]]
    alone = drafter.propose(rows[1:2], [3], 3)
    assert alone == [greedy(network, [*rows[1].tokens, 3], 3)]


def test_a_row_that_grows_is_read_anew_from_its_last_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(draft_model, "DRAFT_CONTEXT_TOKENS", 20)
    network, new_drafter = drafting(LLAMA)
    drafter, row = new_drafter(), Row(1, random_tokens(50, 1))
    assert drafter.propose([row], [2], 3) == [greedy(network, [*row.tokens[-20:], 2], 3)]
    row.tokens += [2, *random_tokens(19, 3)]
    assert drafter.propose([row], [4], 2) == [greedy(network, [*row.tokens[-20:], 4], 2)]
    drafter.drop([1])
    row.tokens.append(4)
    assert drafter.propose([row], [5], 2) == [greedy(network, [*row.tokens[-20:], 5], 2)]


class _NoLookup:
    """A text in which nothing comes back."""

    agreement = 0.0

    def __init__(self, tokens: Sequence[int]) -> None:
        del tokens

    def propose(self, count: int) -> list[int]:
        del count
        return []


@pytest.mark.parametrize(
    ("target", "draft"),
    [
        (LLAMA, LLAMA),
        (QWEN3_5, LLAMA),
        (QWEN3_5, QWEN3_5),
        pytest.param(LLAMA, QWEN3_5, marks=pytest.mark.nightly),
    ],
    ids=lambda a: a.name,
)
def test_tokens_are_those_without_a_draft_model(
    monkeypatch: pytest.MonkeyPatch, target: Architecture, draft: Architecture
) -> None:
    make_drafts_free(monkeypatch)
    monkeypatch.setattr(module, "PromptLookup", _NoLookup)
    cold, bench = Bench(target), Bench(target, draft=draft_of(draft))
    prompts = [random_tokens(length, length) for length in (5, 33, 70)]
    plain = [cold.join(prompt, TOKENS) for prompt in prompts]
    cold.finish()
    expected = [run.tokens for run in plain]
    assert bench.run_alone(prompts[0], TOKENS).tokens == expected[0]
    runs = [bench.join(prompt, TOKENS) for prompt in prompts]
    bench.finish()
    assert [run.tokens for run in runs] == expected
    figures = bench.runner.drafts
    assert figures.drafted_tokens
    # A network guesses itself right, but for the last tokens of an answer.
    assert (figures.accepted_tokens > 0.9 * figures.drafted_tokens) is (target is draft)


def test_a_model_that_cannot_verify_drafts_loads_no_draft_model() -> None:
    bench = Bench(MAMBA, draft=draft_of(LLAMA))
    prompt = random_tokens(5, 1)
    assert bench.run_alone(prompt, 6).tokens == Bench(MAMBA).run_alone(prompt, 6).tokens
    assert bench.runner.drafts.drafted_tokens == 0


def test_a_draft_model_with_another_vocabulary_is_refused(tmp_path: Path) -> None:
    model = make_tiny_llama(tmp_path / "model")
    source = ModelEntry(name="tiny", source=str(model))
    same = make_tiny_llama(tmp_path / "same", hidden=32, layers=1)
    loaded = load_draft(str(same), source)
    drafter = loaded.new_drafter()
    assert isinstance(drafter, ModelDrafter)
    assert (drafter._vocabulary, drafter._support.draft_refusal) == (512, "")
    assert min(loaded.memory.weights_bytes, loaded.memory.row_bytes) > 0
    marks = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<thought>", "</think>")
    other = make_tiny_llama(tmp_path / "other", special=marks)
    with pytest.raises(ModelLoadError, match=r"another .* '<thought>' and not '<think>'"):
        load_draft(str(other), source)
    fewer = make_tiny_llama(tmp_path / "fewer", vocabulary=300)
    with pytest.raises(ModelLoadError, match=r"another vocabulary .* it has 300 ids"):
        load_draft(str(fewer), source)
    with pytest.raises(ModelLoadError, match="no directory"):
        load_draft(str(tmp_path / "none"), source)
