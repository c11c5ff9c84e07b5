"""A window cache: the tokens of mlx-lm's ring, and the last ones can be taken back."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_lm.models.cache import CacheList, KVCache, RotatingKVCache, make_prompt_cache

from tests.support.models.families import network_of
from tests.support.models.kv_sequences import difference, random_tokens
from tests.support.models.tiny_architectures import (
    FALCON_H1,
    GEMMA3,
    GPT_OSS,
    WINDOW,
    Architecture,
)
from worker.engine.mlx.kv.window_cache import WindowKVCache, leaves, make_row_caches
from worker.engine.mlx.rows.ragged_cache import RaggedKind, install_ragged_attention, pass_caches

#: Rounding of float32 under another order of the keys, as a difference of logits.
ROUNDING = 1e-3
SLACK = 64
STEP = 16

with_windows = pytest.mark.parametrize("architecture", [GEMMA3, GPT_OSS], ids=lambda a: a.name)


def logits_of(model: Any, caches: list[Any], tokens: list[int]) -> mx.array:
    """Return the logits after each of the tokens, [tokens, vocabulary]."""
    logits: mx.array = model(mx.array([tokens]), cache=caches)[0]
    mx.eval(logits, [leaf.state for leaf in leaves(caches)])
    return logits


def pieces_of(tokens: list[int], rng: random.Random, longest: int) -> list[list[int]]:
    """Cut tokens into pieces of random lengths."""
    cuts = [0]
    while cuts[-1] < len(tokens):
        cuts.append(min(len(tokens), cuts[-1] + rng.randint(1, longest)))
    return [tokens[start:stop] for start, stop in pairwise(cuts)]


@with_windows
@pytest.mark.parametrize("longest", [5, 3 * (WINDOW + SLACK)])
def test_logits_are_those_of_a_ring(architecture: Architecture, longest: int) -> None:
    model, rng = architecture.make(mx.float32), random.Random(longest)
    ours, theirs = make_row_caches(model, STEP), make_prompt_cache(model)
    prompt = pieces_of(random_tokens(250, longest), rng, longest)
    decoded = [[token] for token in random_tokens(2 * WINDOW + SLACK, 3)]
    for piece in prompt + decoded:
        expected = logits_of(model, theirs, piece)
        assert difference(logits_of(model, ours, piece), expected) < ROUNDING


@with_windows
def test_trimmed_tokens_were_never_seen(architecture: Architecture) -> None:
    model, rng = architecture.make(mx.float32), random.Random(5)
    caches, seen = make_row_caches(model, STEP), random_tokens(30, 5)
    logits_of(model, caches, seen)
    for taken_back in [1, SLACK, *rng.sample(range(2, SLACK), 4)]:
        for piece in pieces_of(random_tokens(taken_back, taken_back), rng, 9):
            logits_of(model, caches, piece)
        assert {leaf.trim(taken_back) for leaf in leaves(caches)} == {taken_back}
        fresh = make_row_caches(model, STEP)
        logits_of(model, fresh, seen)
        for piece in pieces_of(random_tokens(40, taken_back + 1), rng, 9):
            seen += piece
            expected = logits_of(model, fresh, piece)
            assert difference(logits_of(model, caches, piece), expected) < ROUNDING


@with_windows
def test_several_tokens_of_ragged_rows_are_those_of_each_row_alone(
    architecture: Architecture,
) -> None:
    model = architecture.make(mx.float32)
    assert install_ragged_attention(model)[0]
    prompts = [random_tokens(length, length) for length in (3, 2 * WINDOW, 200)]
    drafts = [random_tokens(length, length) for length in (9, 1, 4)]
    rows, alone = [], []
    for prompt, draft in zip(prompts, drafts, strict=True):
        rows.append(make_row_caches(model, STEP))
        logits_of(model, rows[-1], prompt)
        fresh = make_row_caches(model, STEP)
        logits_of(model, fresh, prompt)
        alone.append(mx.concatenate([logits_of(model, fresh, [token]) for token in draft]))
    lengths = [len(draft) for draft in drafts]
    tokens = mx.array([token for draft in drafts for token in draft])
    together = model(tokens[:, None], cache=pass_caches(rows, lengths, {}, RaggedKind.WHOLE))
    assert difference(together[:, 0], mx.concatenate(alone)) < ROUNDING


def test_rows_get_window_caches_where_the_ring_is_plain() -> None:
    class Network:
        layers = (None,) * 4

        def make_cache(self) -> list[Any]:
            nested = CacheList(RotatingKVCache(8), KVCache())
            return [RotatingKVCache(8), RotatingKVCache(8, keep=2), nested, KVCache()]

    window, ring, nested, full = make_row_caches(Network(), 32)
    assert type(window) is type(nested[0]) is WindowKVCache
    assert (window.window, window.step, full.step, nested[1].step) == (8, 32, 32, 32)
    assert type(ring) is RotatingKVCache
    assert KVCache.step == KVCache().step != 32
    assert len(make_row_caches(FALCON_H1.make(mx.float32))) == 2


def test_layers_that_share_a_cache_read_the_whole_last_piece() -> None:
    class Network:
        layers = (None, None)

        def make_cache(self) -> list[Any]:
            return [RotatingKVCache(8)]

    (cache,) = make_row_caches(Network(), STEP)
    for tokens in (5, 300, 1):
        keys = mx.random.normal((1, 1, tokens, 2))
        fetched = cache.update_and_fetch(keys, keys)
        assert all(map(mx.array_equal, fetched, cache.keys_and_values()))


def visible(mask: mx.array | str | None, fetched: list[int], queries: int) -> list[list[int]]:
    """Return the tokens that each of the last tokens sees under a mask."""
    if mask is None:
        assert queries == 1
        return [fetched]
    if isinstance(mask, str):
        assert mask == "causal"
        return [fetched[: len(fetched) - later] for later in reversed(range(queries))]
    rows: Any = mask.reshape(queries, len(fetched)).tolist()
    return [[token for token, seen in zip(fetched, row, strict=True) if seen] for row in rows]


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.one_of(st.just(1), st.integers(1, 12), st.integers(1, 90))),
        st.tuples(st.just("trim"), st.integers(0, 40)),
    ),
    max_size=40,
)


@given(
    operations=OPERATIONS,
    window=st.integers(1, 20),
    slack=st.integers(0, 12),
    step=st.integers(1, 16),
)
def test_it_is_the_end_of_a_list(
    operations: list[tuple[str, int]], window: int, slack: int, step: int
) -> None:
    cache = WindowKVCache(window, slack=slack, step=step)
    model: list[int] = []
    since_trim, following = slack, 0
    for operation, count in operations:
        if operation == "trim":
            may = cache.trimmable
            assert may >= min(len(model), since_trim)
            trimmed = cache.trim(count)
            assert trimmed == min(count, may)
            del model[len(model) - trimmed :]
            since_trim = max(0, since_trim - trimmed)
        else:
            new = list(range(following, following + count))
            following += count
            since_trim = min(slack, since_trim + count)
            mask = cache.make_mask(count)
            expected = model[len(model) - min(len(model), window - 1) :] + new
            keys = mx.array(new, mx.float32).reshape(1, 1, count, 1)
            fetched_keys, fetched_values = cache.update_and_fetch(keys, -keys)
            model += new
            assert fetched_keys.flatten().tolist() == expected
            assert fetched_values.flatten().tolist() == [-token for token in expected]
            assert visible(mask, expected, count) == [
                model[max(0, stop - window) : stop]
                for stop in range(len(model) - count + 1, len(model) + 1)
            ]
        assert cache.offset == len(model)
        assert cache.length >= min(len(model), window - 1)
        assert cache.keys is None or cache.keys.shape[2] <= window + slack + step


def test_decode_writes_in_place() -> None:
    window, heads, dim = 512, 4, 64
    cache = WindowKVCache(window, slack=SLACK, step=256)
    token = mx.ones((1, heads, 1, dim))
    prompt = mx.ones((1, heads, 3 * window, dim))
    mx.eval(cache.update_and_fetch(prompt, prompt))
    del prompt
    mx.eval(cache.keys, cache.values)
    mx.clear_cache()
    slots = cache.slots_for(3 * window)
    assert cache.nbytes == 2 * slots * heads * dim * 4
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    for _ in range(100):
        mx.eval(cache.update_and_fetch(token, token))
    assert mx.get_peak_memory() - before < cache.nbytes / 4
    for _ in range(3 * 256):
        mx.eval(cache.update_and_fetch(token, token))
    # The shift makes another buffer beside the present one.
    assert mx.get_peak_memory() - before < 1.1 * cache.nbytes
    assert mx.get_active_memory() - before < cache.nbytes / 4


def test_chunks_of_a_sequence_are_attended_as_with_the_cache_of_mlx_lm() -> None:
    network = network_of("llama4")
    theirs, ours = make_prompt_cache(network), make_row_caches(network)
    assert {type(cache) for cache in ours} == {WindowKVCache, KVCache}
    # Within a chunk of 12, up to its end, over several, and one by one.
    for tokens in (random_tokens(length, length) for length in (5, 7, 40, *[1] * 15, 3)):
        expected = network(mx.array([tokens]), cache=theirs)
        assert mx.allclose(network(mx.array([tokens]), cache=ours), expected, atol=1e-4)
