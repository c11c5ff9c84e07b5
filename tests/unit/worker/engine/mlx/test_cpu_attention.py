"""Attention and SwiGLU of x86 processors are those of MLX."""

from __future__ import annotations

import math
import platform
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.models.activations import swiglu as swiglu_of_mlx_lm

from worker.engine.mlx.kv import cpu_attention
from worker.engine.mlx.kv.cpu_attention import (
    attention,
    exponential,
    has_slow_exponentials,
    softmax,
    swiglu,
)

_TOLERANCE = 1e-5


@pytest.fixture(autouse=True)
def _slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_attention, "has_slow_exponentials", lambda: True)
    monkeypatch.setattr(cpu_attention, "_EXPONENTIALS_MIN", 1)


def test_an_exponential_is_as_exact_as_that_of_mlx() -> None:
    x = mx.linspace(-80, 80, 200_001)
    exact = np.exp(np.array(x, dtype=np.float64))
    ours = np.abs(np.array(exponential(x)) / exact - 1)
    theirs = np.abs(np.array(mx.exp(x)) / exact - 1)
    assert ours.max() <= max(theirs.max(), 4e-6)
    small = np.abs(np.array(x)) < 10
    assert ours[small].max() <= 7e-7


def test_an_exponential_ends_in_zero_and_does_not_overflow() -> None:
    x = mx.array([-math.inf, float(mx.finfo(mx.float32).min), -1000.0, -88.2, 0.0])
    assert exponential(x).tolist() == [0.0, 0.0, 0.0, 0.0, 1.0]
    assert exponential(mx.array([89.0, 1e30, math.inf])).tolist() == [math.inf] * 3


def _masks(rows: int, heads: int, new: int, held: int) -> dict[str, Any]:
    """Return the masks that models pass."""
    window = mx.arange(held - new, held)[:, None] < mx.arange(held) + 7
    causal = mx.arange(held - new, held)[:, None] >= mx.arange(held)
    key = mx.random.key(held)
    return {
        "none": None,
        "causal": "causal",
        "window": causal & window,
        "one row": mx.arange(held)[None] > 0,
        "added": mx.random.normal((rows, heads, new, held), key=key),
        "added where it is seen": mx.where(causal, 0.5, -math.inf)[None, None],
        "one for all queries": mx.random.normal((rows, heads, 1, held), key=key),
    }


@settings(deadline=None, max_examples=60)
@given(
    rows=st.integers(1, 2),
    kv_heads=st.integers(1, 2),
    repeats=st.integers(1, 3),
    new=st.sampled_from([1, 2, 15, 16, 17, 70]),
    before=st.sampled_from([0, 1, 100]),
    mask=st.sampled_from(sorted(_masks(1, 1, 1, 1))),
    has_sinks=st.booleans(),
    values_dim=st.sampled_from([4, 6]),
    chunk=st.sampled_from([1, 5000]),
    seed=st.integers(0, 2**32 - 1),
)
def test_attention_is_that_of_mlx(
    *,
    rows: int,
    kv_heads: int,
    repeats: int,
    new: int,
    before: int,
    mask: str,
    has_sinks: bool,
    values_dim: int,
    chunk: int,
    seed: int,
) -> None:
    heads, held = kv_heads * repeats, before + new
    keys_of = mx.random.split(mx.random.key(seed), 4)
    queries = mx.random.normal((rows, heads, new, 4), key=keys_of[0])
    keys = mx.random.normal((rows, kv_heads, held, 4), key=keys_of[1])
    values = mx.random.normal((rows, kv_heads, held, values_dim), key=keys_of[2])
    sinks = mx.random.normal((heads,), key=keys_of[3]) if has_sinks else None
    given_mask = _masks(rows, heads, new, held)[mask]
    expected = mx.fast.scaled_dot_product_attention(
        queries, keys, values, scale=0.7, mask=given_mask, sinks=sinks
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu_attention, "_CHUNK_SCORES", chunk)
        found = attention(queries, keys, values, 0.7, given_mask, sinks)
    assert found.shape == expected.shape
    assert mx.allclose(found, expected, rtol=_TOLERANCE, atol=_TOLERANCE)


def test_other_precisions_are_left_to_mlx() -> None:
    queries = mx.random.normal((1, 2, 3, 8)).astype(mx.bfloat16)
    expected = mx.fast.scaled_dot_product_attention(
        queries, queries, queries, scale=1.0, mask="causal"
    )
    found = attention(queries, queries, queries, 1.0, "causal", None)
    assert mx.array_equal(found, expected)
    gate = mx.array([-3.0, 2.0], mx.float16)
    assert mx.array_equal(swiglu(gate, gate), swiglu_of_mlx_lm(gate, gate))


def test_swiglu_is_that_of_mlx_lm() -> None:
    gate = mx.concatenate([mx.linspace(-120, 120, 4001), mx.array([-1e30, 1e30, 0.0])])
    x = mx.linspace(-3, 3, gate.size)
    assert mx.allclose(swiglu(gate, x), swiglu_of_mlx_lm(gate, x), rtol=_TOLERANCE, atol=1e-30)


def test_softmax_is_that_of_mlx() -> None:
    scores = mx.random.normal((2, 3, 500), key=mx.random.key(1)) * 20
    scores = mx.where(mx.arange(500) % 3 == 0, mx.finfo(mx.float32).min, scores)
    assert mx.allclose(softmax(scores), mx.softmax(scores, axis=-1), rtol=_TOLERANCE, atol=1e-30)


def test_few_exponentials_are_left_to_mlx(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_attention, "_EXPONENTIALS_MIN", 40)
    monkeypatch.setattr(cpu_attention, "exponential", lambda _: pytest.fail("it was computed here"))
    x = mx.ones((1, 3, 1, 13))
    assert attention(x, x, x, 1.0, None, None).shape == x.shape
    assert swiglu(x, x).shape == x.shape
    with pytest.raises(pytest.fail.Exception):
        swiglu(mx.ones(40), mx.ones(40))


def test_only_x86_processors_of_linux_are_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_attention, "computes_on_cpu", lambda: True)
    for machine, is_slow in (("x86_64", True), ("aarch64", False), ("arm64", False)):
        monkeypatch.setattr(platform, "machine", lambda machine=machine: machine)
        assert has_slow_exponentials() is is_slow
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(cpu_attention, "computes_on_cpu", lambda: False)
    assert not has_slow_exponentials()
