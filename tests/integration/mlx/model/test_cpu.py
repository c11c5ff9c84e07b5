"""OpenBLAS in front of MLX, and networks in single precision."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import mlx.core as mx
import pytest
from mlx.nn.layers.base import Module
from mlx.nn.layers.embedding import Embedding
from mlx.nn.layers.linear import Linear
from mlx.nn.layers.quantized import quantize
from mlx.utils import tree_flatten
from structlog.testing import capture_logs

import worker.demo_model
from domain.model.registry import ModelEntry
from tests.support.models.blas import use_reference
from worker.engine.mlx import cpu
from worker.engine.mlx.cpu import BlasSlot, in_single_precision, use_openblas
from worker.engine.mlx.model import loader
from worker.engine.mlx.model.loader import load_weights

pytestmark = pytest.mark.skipif(not cpu.computes_on_cpu(), reason="MLX computes on a GPU here")

DEMO = str(Path(worker.demo_model.__file__).parent)


@pytest.fixture(autouse=True)
def slot() -> Iterator[BlasSlot]:
    """Return the entry of MLX's library, which has MLX's own BLAS before and after the test."""
    use_reference()
    slot = BlasSlot()
    yield slot
    slot.point_to(slot.reference)


def test_openblas_multiplies_from_then_on(slot: BlasSlot) -> None:
    with capture_logs() as lines:
        assert use_openblas()
    assert slot.address != slot.reference
    assert [(line["library"], line["log_level"]) for line in lines] == [("OpenBLAS", "info")]
    left, right = mx.random.normal((33, 70)), mx.random.normal((70, 20))
    fast = left @ right
    mx.eval(fast)
    use_reference()
    assert mx.allclose(fast, left @ right, rtol=1e-5, atol=1e-5)


def test_openblas_is_set_once(slot: BlasSlot) -> None:
    assert use_openblas()
    address = slot.address
    with capture_logs() as lines:
        assert use_openblas()
    assert (slot.address, lines) == (address, [])


def test_one_processor_is_left_to_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(2)))
    with capture_logs() as lines:
        use_openblas()
    assert [line["threads"] for line in lines] == [1]


def test_a_library_with_other_products_is_not_used(
    slot: BlasSlot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "_agree", lambda *_: False)
    with capture_logs() as lines:
        assert not use_openblas()
    assert slot.address == slot.reference
    assert [line["why"] for line in lines] == ["the products differ"]


def test_other_products_are_noticed() -> None:
    products = cpu._products()
    assert cpu._agree(products, cpu._products())
    assert not cpu._agree(products, [*products[:-1], products[-1] * 1.001])


def test_a_blas_of_the_user_stays(slot: BlasSlot) -> None:
    openblas = cpu._openblas()
    users = cpu._address(openblas, "scipy_cblas_sgemm_batch")
    address = slot.address
    # Another address than that of MLX and of OpenBLAS; nothing calls it.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu, "_products", list)
        slot.point_to(users)
        with capture_logs() as lines:
            assert not use_openblas()
        assert slot.address == users
        slot.point_to(address)
    assert [line["why"] for line in lines] == ["MLX calls a BLAS that it does not contain"]


def test_a_missing_package_is_reported(slot: BlasSlot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "find_spec", lambda _: None)
    with capture_logs() as lines:
        assert not use_openblas()
    assert slot.address == slot.reference
    assert [line["why"] for line in lines] == ["the package scipy-openblas32 is not installed"]


class Tiny(Module):
    """An embedding and a layer; 1,024 weights each."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # mlx ships no types
        self.embed = Embedding(16, 64)
        self.layer = Linear(64, 16)

    def __call__(self, ids: mx.array) -> mx.array:
        hidden: mx.array = self.layer(self.embed(ids))
        return hidden


def dtypes(network: Module) -> set[mx.Dtype]:
    arrays: list[tuple[str, mx.array]] = tree_flatten(network.parameters())  # type: ignore[assignment,no-untyped-call]  # as in MLX, untyped
    return {array.dtype for _, array in arrays}


def test_weights_of_half_precision_become_single() -> None:
    network = Tiny()
    network.set_dtype(mx.bfloat16)
    before = network(mx.array([3]))
    in_single_precision(network, 2**30)
    assert dtypes(network) == {mx.float32}
    assert mx.allclose(network(mx.array([3])), before, atol=0.05)


def test_weights_without_room_stay() -> None:
    network = Tiny()
    network.set_dtype(mx.bfloat16)
    with capture_logs() as lines:
        in_single_precision(network, 2 * 4 * 2064 - 1)
    assert dtypes(network) == {mx.bfloat16}
    assert [line["event"] for line in lines] == ["slow_precision"]


@pytest.mark.parametrize(
    ("usable_bytes", "expected"),
    [(2**30, {mx.float32}), (8 * 2000, {mx.float32, mx.uint32})],
)
def test_quantized_weights_are_dequantized_where_they_have_room(
    usable_bytes: int, expected: set[mx.Dtype]
) -> None:
    network = Tiny()
    network.set_dtype(mx.float16)
    quantize(network, group_size=32, bits=4)
    before = network(mx.array([3]))
    in_single_precision(network, usable_bytes)
    assert dtypes(network) == expected
    assert mx.allclose(network(mx.array([3])), before, atol=0.05)


def test_a_loaded_model_computes_in_single_precision_with_openblas(
    slot: BlasSlot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "use_openblas", use_openblas)
    loaded = load_weights(ModelEntry(name="tiny", source=DEMO))
    assert dtypes(loaded.network) == {mx.float32}
    assert slot.address != slot.reference
