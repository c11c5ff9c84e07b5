from __future__ import annotations

import numpy as np
import pytest

mx = pytest.importorskip("mlx.core")


def test_exponentials_are_close_and_stay_normal_numbers() -> None:
    from bench.demo_model.cpu_kernels import exp_of_negative  # noqa: PLC0415 - needs mlx

    values = np.concatenate([np.linspace(-30.0, 0.0, 1000), [-80.0, -1e4]]).astype(np.float32)
    found = np.array(exp_of_negative(mx.array(values)))
    near = values > -10
    assert np.allclose(found[near], np.exp(values[near]), rtol=0.01)
    assert (found[values < -30] < 1e-12).all()
    # A gradient a million times smaller than this is still no denormal number, with which
    # processors multiply a hundred times more slowly.
    assert (found * 1e-12 >= np.finfo(np.float32).tiny).all()
