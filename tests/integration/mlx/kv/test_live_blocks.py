"""Blocks out of a running batch, and restored sequences inside one."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import mlx.core as mx
import pytest

from tests.support.models.kv_sequences import (
    DECODED,
    Sequence1,
    block_difference,
    difference,
    random_tokens,
)
from tests.support.models.tiny_architectures import (
    ARCHITECTURES,
    GEMMA3,
    GPT_OSS,
    LLAMA,
    VOCABULARY,
    Architecture,
)
from worker.engine.mlx.kv.arrays import BlockArrays
from worker.engine.mlx.kv.gather import gather
from worker.engine.mlx.kv.live import cut_at_borders, extract_live
from worker.engine.mlx.kv.probe import probe_spec
from worker.engine.mlx.kv.split import extract
from worker.engine.mlx.kv.window_cache import make_row_caches
from worker.engine.mlx.rows.ragged_attention import install_ragged_attention
from worker.engine.mlx.rows.running_sequences import JoinRequest, RunningSequences

BLOCK = 8
EXACT_IN_BATCHES = ("llama", "qwen2", "qwen3", "qwen3_next")
#: Measured here: 8.4e-6 of values up to 10 (gpt_oss, blocks), 8e-6 of logits (gemma3).
BOUND = 5e-5
STEPS_MAX = 200

architectures = pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda a: a.name)


@cache
def network(architecture: Architecture) -> Any:
    return architecture.make(mx.float32)


def bound_of(architecture: Architecture) -> float:
    return 0 if architecture.name in EXACT_IN_BATCHES else BOUND


@dataclass
class Talk:
    """One sequence in the batch and what was seen of it.

    ``blocks`` is by the tokens up to the end of the block; those of ``restored`` are not cut again.
    """

    prompt: list[int]
    restored: int = 0
    tokens: list[int] = field(default_factory=list)
    logprobs: list[mx.array] = field(default_factory=list)
    blocks: dict[int, BlockArrays] = field(default_factory=dict)
    tails: dict[int, BlockArrays] = field(default_factory=dict)

    @property
    def held(self) -> list[int]:
        return self.prompt + self.tokens


class Batch:
    """Running sequences that are looked at after every step."""

    def __init__(self, model: Any, step_tokens: int = BLOCK, block_tokens: int = BLOCK) -> None:
        self.model = model
        self.step_tokens = step_tokens
        self.block_tokens = block_tokens
        self.sequences = RunningSequences(
            model,
            self._draw,
            row_bytes=lambda _: 0,
            ragged=install_ragged_attention(model),
        )
        self.talks: dict[int, Talk] = {}
        self.limits: dict[int, int] = {}

    def _draw(self, logprobs: mx.array) -> mx.array:
        for at, uid in enumerate(self.sequences.sampled):
            self.talks[uid].logprobs.append(logprobs[at])
        return mx.argmax(logprobs, axis=-1)

    def join(
        self, prompt: list[int], max_tokens: int, caches: list[Any] | None = None, held: int = 0
    ) -> Talk:
        segments = cut_at_borders(prompt[held:], held, self.block_tokens)
        uid = self.sequences.insert(
            JoinRequest(segments=segments, caches=caches, tokens=prompt[:held])
        )
        self.talks[uid], self.limits[uid] = Talk(prompt, held), max_tokens
        return self.talks[uid]

    def step(self) -> bool:
        """Compute once and cut every block that has become complete."""
        prefilled = self.sequences.prefill(self.step_tokens)
        self._look_at_all()
        prefilled += self.sequences.start_decoding()
        self._look_at_all()
        decoded = self.sequences.decode()
        for uid, token in decoded:
            self.talks[uid].tokens.append(token)
        ended = [uid for uid, _ in decoded if len(self.talks[uid].tokens) == self.limits[uid]]
        self.sequences.remove(ended)
        self._look_at_all()
        return bool(prefilled or decoded)

    def _look_at_all(self) -> None:
        for uid, talk in self.talks.items():
            found = self.sequences.find(uid)
            if found is not None:
                self._look(uid, talk, list(found[1]))

    def finish(self) -> None:
        for _ in range(STEPS_MAX):
            if not self.step():
                return
        pytest.fail("the batch does not end")

    def _look(self, uid: int, talk: Talk, held: list[int]) -> None:
        # The rule: never ahead of what was returned, and never behind.
        assert held == talk.held[: len(held)]
        assert not talk.tokens or held == talk.held
        last = len(held) - len(held) % self.block_tokens
        for stop in range(self.block_tokens, last + 1, self.block_tokens):
            if stop not in talk.blocks and stop > talk.restored:
                block = extract_live(self.sequences, uid, stop - self.block_tokens, stop)
                assert block is not None
                talk.blocks[stop] = block
        if len(held) == len(talk.prompt) - 1 and last < len(held):
            tail = extract_live(self.sequences, uid, last, len(held))
            assert tail is not None
            talk.tails[len(held)] = tail


def alone(model: Any, tokens: list[int], block_tokens: int = BLOCK) -> Sequence1:
    """Return the reference: one sequence, cut at the same borders."""
    sequence = Sequence1(model, probe_spec(model, block_tokens))
    sequence.prefill_blocks(tokens, len(tokens))
    return sequence


def run_staggered(batch: Batch) -> list[Talk]:
    """Let five strangers of very different length come and go."""
    talks = [batch.join(random_tokens(37, 1), 14), batch.join(random_tokens(21, 2), 20)]
    for steps, length, max_tokens in ((3, 50, 12), (3, 5, 20), (3, 33, 10)):
        for _ in range(steps):
            batch.step()
        talks.append(batch.join(random_tokens(length, length), max_tokens))
    batch.finish()
    return talks


@architectures
def test_blocks_cut_in_a_busy_batch_are_those_of_a_lone_sequence(
    architecture: Architecture,
) -> None:
    model = network(architecture)
    for talk in run_staggered(Batch(model)):
        reference = alone(model, talk.held)
        # At the end the last token is in the caches too, but the sequence has left the batch.
        assert len(talk.blocks) == (len(talk.held) - 1) // BLOCK
        for number, block in enumerate(talk.blocks.values()):
            assert block_difference(block, reference.blocks[number]) <= bound_of(architecture)
        for stop, tail in talk.tails.items():
            same = alone(model, talk.held[:stop]).tail()
            assert same is not None
            assert block_difference(tail, same) <= bound_of(architecture)


@pytest.mark.parametrize("architecture", [LLAMA, GEMMA3, GPT_OSS], ids=lambda a: a.name)
def test_prefill_in_longer_pieces_gives_every_block_where_no_layer_has_a_state(
    architecture: Architecture,
) -> None:
    model = network(architecture)
    batch = Batch(model, step_tokens=4 * BLOCK, block_tokens=4 * BLOCK)
    batch.block_tokens = BLOCK
    for length, seed, max_tokens in ((60, 1, 4), (23, 2, 30)):
        prompt = random_tokens(length, seed)
        uid = batch.sequences.insert(JoinRequest(segments=[prompt], tokens=[]))
        batch.talks[uid], batch.limits[uid] = Talk(prompt), max_tokens
    batch.finish()
    for talk in batch.talks.values():
        reference = alone(model, talk.held)
        for stop, block in talk.blocks.items():
            same = reference.blocks[stop // BLOCK - 1]
            assert block_difference(block, same) <= bound_of(architecture)


@architectures
def test_sequences_restored_among_strangers_say_what_they_say_alone(
    architecture: Architecture,
) -> None:
    model = network(architecture)
    spec = probe_spec(model, BLOCK)
    batch = Batch(model)
    run: list[tuple[Talk, list[int], mx.array]] = []
    for number, (length, held) in enumerate(((41, 40), (30, 24), (45, 27), (26, 3), (60, 57))):
        prompt = random_tokens(length, seed=100 + number)
        before = alone(model, prompt[:held])
        caches = gather(
            spec,
            before.blocks,
            before.tail(),
            held % BLOCK,
            lambda: make_row_caches(model),
        )
        talk = batch.join(prompt, DECODED, caches, held)
        tokens, logits = Sequence1(model, spec).decode(prompt)
        run.append((talk, tokens, logits))
        batch.join(random_tokens(10 + 7 * number, seed=number), 5)
        batch.step()
        batch.step()
    batch.finish()
    for talk, tokens, logits in run:
        assert talk.tokens == tokens
        logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        assert difference(mx.stack(talk.logprobs[:DECODED]), logprobs) <= bound_of(architecture)


@architectures
def test_sequence_taken_out_in_mid_decode_goes_on_out_of_its_blocks(
    architecture: Architecture,
) -> None:
    model = network(architecture)
    spec = probe_spec(model, BLOCK)
    batch = Batch(model)
    prompt = random_tokens(29, seed=5)
    talk = batch.join(prompt, 40)
    batch.join(random_tokens(50, seed=6), 30)
    while len(talk.tokens) < 6:
        batch.step()
    (uid,) = (uid for uid, other in batch.talks.items() if other is talk)
    held = len(talk.held)
    start = held - held % BLOCK
    tail = extract_live(batch.sequences, uid, start, held)
    batch.sequences.remove([uid])
    assert batch.sequences.find(uid) is None
    blocks = [talk.blocks[stop] for stop in range(BLOCK, start + 1, BLOCK)]
    # The newest token is in the caches, so one token less is taken to have something to compute;
    # where that cannot be cut off, the tail is left out.
    cut = spec.usable_tokens(stored_tokens=held - start, matching_tokens=held - start - 1)
    caches = gather(spec, blocks, tail if cut else None, cut, lambda: make_row_caches(model))
    again = batch.join(talk.held, DECODED, caches, start + cut)
    batch.finish()
    whole = Sequence1(model, spec)
    assert talk.tokens + again.tokens == [*talk.tokens, *whole.decode(talk.held)[0]]


@architectures
def test_caches_hold_the_last_token_that_was_returned(architecture: Architecture) -> None:
    model = network(architecture)
    batch = Batch(model)
    batch.join(random_tokens(40, seed=6), 60)
    talk = batch.join(random_tokens(29, seed=5), 7)
    while len(talk.tokens) < 6:
        batch.step()
    found = batch.sequences.find(1)
    assert found is not None
    caches, tokens = found
    assert tokens == talk.held
    held = len(tokens)
    assert held == 35
    tail = extract(caches, 32, held, cached_tokens=held)
    same = alone(model, tokens).tail()
    assert tail is not None
    assert same is not None
    assert block_difference(tail, same) <= bound_of(architecture)


def test_restored_sequence_joins_without_another_copy_of_its_context() -> None:
    model = network(LLAMA)
    spec = probe_spec(model, BLOCK)
    prompt = [token % VOCABULARY for token in range(4001)]
    before = Sequence1(model, spec)
    before.prefill(prompt[:4000])
    blocks = [before.cut(start, start + BLOCK) for start in range(0, 4000, BLOCK)]
    del before
    batch = Batch(model)
    other = batch.join(random_tokens(20, seed=7), 100)
    while not other.tokens:
        batch.step()
    caches = gather(spec, blocks, None, 0, lambda: make_row_caches(model))
    context = sum(leaf.nbytes for leaf in caches)
    uid = batch.sequences.insert(
        JoinRequest(segments=[prompt[-1:]], caches=caches, tokens=prompt[:-1])
    )
    batch.talks[uid] = Talk(prompt, 4000)
    del caches
    held = mx.get_active_memory()
    mx.reset_peak_memory()
    batch.sequences.start_decoding()
    for _ in range(3):
        batch.sequences.decode()
    assert batch.sequences.lengths[1] > len(prompt)
    # One layer's scores and such; every copy of the context would be all of it.
    assert mx.get_peak_memory() - held < context / 4


def test_sequence_that_is_not_there_gives_no_block() -> None:
    batch = Batch(network(LLAMA))
    batch.join(random_tokens(20, 1), 2)
    assert extract_live(batch.sequences, 0, 0, BLOCK) is None  # still waits
    batch.step()
    assert extract_live(batch.sequences, 0, 0, BLOCK) is not None
    assert extract_live(batch.sequences, 0, BLOCK, 2 * BLOCK) is None  # has not come so far
    assert extract_live(batch.sequences, 7, 0, BLOCK) is None


@pytest.mark.parametrize(
    ("count", "held", "lengths"),
    [(20, 0, [8, 8, 4]), (16, 0, [8, 8]), (20, 8, [8, 8, 4]), (20, 5, [3, 8, 8, 1]), (1, 7, [1])],
)
def test_prompt_is_cut_where_its_blocks_end(count: int, held: int, lengths: list[int]) -> None:
    segments = cut_at_borders(list(range(count)), held, BLOCK)
    assert [len(segment) for segment in segments] == lengths
    assert [token for segment in segments for token in segment] == list(range(count))
