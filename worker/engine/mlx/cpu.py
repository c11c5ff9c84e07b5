"""Make MLX fast on the CPUs of Linux: another BLAS, and single precision.

The wheel ``mlx-cpu`` contains the reference BLAS of Netlib, which multiplies matrices some 20 to 70
times slower than OpenBLAS, and multiplies numbers of half precision without a BLAS.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import mlx.core as mx
import mlx_lm.utils
import structlog
from mlx.nn.layers.quantized import QuantizedEmbedding, QuantizedLinear
from mlx.utils import tree_flatten
from mlx_lm.models.switch_layers import QuantizedSwitchLinear

from worker.engine.mlx.untyped import Network

_log = structlog.get_logger(__name__)

_FUNCTION: Final = "cblas_sgemm"
#: Prefix of the symbols of the package ``scipy-openblas32``.
_PREFIX: Final = "scipy_"
#: Relocations that bind a function of another library, by machine (ELF psABI).
_JUMP_SLOTS: Final = MappingProxyType({"x86_64": 7, "aarch64": 1026})
_RELOCATIONS_WITH_ADDENDS: Final = 4
_SYMBOL_BYTES: Final = 24
#: Rows, inner size and columns of the products that both libraries compute before one is chosen.
_SHAPES: Final = ((1, 64, 64), (3, 129, 65), (17, 256, 33), (64, 96, 128))
#: Largest difference of two products, as a share of their largest element.
_DIFFERENCE_MAX: Final = 1e-5
#: Weights in single precision may take this share of the usable memory; contexts need the rest.
_WEIGHTS_SHARE_MAX: Final = 0.5
_FLOAT32_BYTES: Final = 4
_WORD_BITS: Final = 32
_QUANTIZED: Final = (QuantizedLinear, QuantizedEmbedding, QuantizedSwitchLinear)


class BlasSlot:
    """The entry of ``libmlx.so`` that holds the address of ``cblas_sgemm``.

    The dynamic linker reads such an entry for each call into another library, so another address
    there is another implementation, without a preloaded library or a changed file.

    Raises:
        LookupError: The library has no such entry, or something else than its own BLAS is in it,
            such as a library that ``LD_PRELOAD`` names.
        OSError: The library cannot be read.
    """

    def __init__(self) -> None:
        path, start = _mapped_library()
        self.reference = _address(ctypes.CDLL(str(path)), _FUNCTION)
        self._slot = ctypes.c_void_p.from_address(start + _offset(path))

    @property
    def address(self) -> int:
        """The function that MLX calls now; 0 or a stub of the linker before the first call."""
        return self._slot.value or 0

    def point_to(self, address: int) -> None:
        """Make MLX call the function at an address, which must have the interface of CBLAS."""
        self._slot.value = address


def use_openblas() -> bool:
    """Let MLX multiply with OpenBLAS in this process, and return whether it does.

    Nothing changes where MLX has a GPU, where the package ``scipy-openblas32`` is missing, or where
    its products differ from those of MLX. OpenBLAS takes ``OPENBLAS_NUM_THREADS`` threads; by
    default one processor is left for the other threads of the service.
    """
    if not computes_on_cpu():
        return False
    try:
        library = _openblas()
        products = _products()  # binds the entry
        slot = BlasSlot()
        address = _address(library, f"{_PREFIX}{_FUNCTION}")
        if slot.address == address:
            return True
        if slot.address != slot.reference:
            raise LookupError("MLX calls a BLAS that it does not contain")  # noqa: TRY301 - one report
    except (LookupError, OSError, ValueError) as error:
        _log.warning("blas", library="the reference BLAS of mlx-cpu", why=str(error))
        return False
    slot.point_to(address)
    if not _agree(products, _products()):
        slot.point_to(slot.reference)
        _log.warning("blas", library="the reference BLAS of mlx-cpu", why="the products differ")
        return False
    _log.info("blas", library="OpenBLAS", threads=_set_threads(library))
    return True


def blas_name() -> str:
    """Return which BLAS MLX calls in this process, with its version; empty where it uses none."""
    if not computes_on_cpu():
        return ""
    try:
        _products()  # binds the entry
        slot = BlasSlot()
        if slot.address == slot.reference:
            return "reference"  # it has the version of MLX
        if slot.address == _address(_openblas(), f"{_PREFIX}{_FUNCTION}"):
            return f"openblas {version('scipy-openblas32')}"
    except (LookupError, OSError, ValueError):
        pass
    return "other"


def in_single_precision(network: Network, usable_bytes: int) -> None:
    """Let a network compute in float32 on a CPU; its arrays stay lazy.

    Weights of half precision become float32, and quantized weights are dequantized, if all of them
    take at most half of the memory. Otherwise only scales and biases of quantized weights become
    float32, and weights of half precision stay.

    Args:
        network: An mlx-lm model, changed in place.
        usable_bytes: Memory for weights, contexts and steps.
    """
    has_room = _single_bytes(network) <= _WEIGHTS_SHARE_MAX * usable_bytes
    is_quantized = any(isinstance(module, _QUANTIZED) for module in network.modules())
    if not has_room and not is_quantized:
        _log.warning("slow_precision", why="the weights do not fit into the memory as float32")
        return
    if has_room:
        mlx_lm.utils.dequantize_model(network)
    network.set_dtype(mx.float32)


def is_on_gpu() -> bool:
    """Return whether a GPU computes, while this thread prepares the next step."""
    return bool(mx.default_device() != mx.Device(mx.cpu))


def computes_on_cpu() -> bool:
    """Return whether MLX computes on a CPU of Linux."""
    return platform.system() == "Linux" and mx.default_device().type == mx.DeviceType.cpu


def _single_bytes(network: Network) -> int:
    """Return what the weights of a network take in float32."""
    packed = sum(
        module.weight.size * (_WORD_BITS // module.bits)
        for module in network.modules()
        if isinstance(module, _QUANTIZED)
    )
    arrays: list[tuple[str, Any]] = tree_flatten(network.parameters())  # type: ignore[assignment]
    floats = sum(array.size for _, array in arrays if mx.issubdtype(array.dtype, mx.floating))
    weights: int = packed + floats
    return _FLOAT32_BYTES * weights


def _openblas() -> ctypes.CDLL:
    spec = find_spec("scipy_openblas32")
    places = () if spec is None else tuple(spec.submodule_search_locations or ())
    found = [file for place in places for file in Path(place).glob("lib/libscipy_openblas*.so")]
    if not found:
        raise LookupError("the package scipy-openblas32 is not installed")
    return ctypes.CDLL(str(found[0]))


def _address(library: ctypes.CDLL, name: str) -> int:
    try:
        function = getattr(library, name)
    except AttributeError as error:
        raise LookupError(f"{library._name} has no {name}") from error  # noqa: SLF001 - no public name
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _set_threads(library: ctypes.CDLL) -> int:
    """Leave a processor to the other threads, unless the environment has a number."""
    if "OPENBLAS_NUM_THREADS" not in os.environ:
        set_threads = getattr(library, f"{_PREFIX}openblas_set_num_threads")
        set_threads(max(1, len(os.sched_getaffinity(0)) - 1))
    return int(getattr(library, f"{_PREFIX}openblas_get_num_threads")())


def _products() -> list[mx.array]:
    """Multiply fixed matrices of several shapes with the BLAS that MLX calls now."""
    key = mx.random.key(0)
    made = []
    for rows, inner, columns in _SHAPES:
        key, left, right = mx.random.split(key, 3)
        product = mx.random.normal((rows, inner), key=left) @ mx.random.normal(
            (inner, columns), key=right
        )
        made.append(product)
    mx.eval(made)
    return made


def _agree(products: list[mx.array], others: list[mx.array]) -> bool:
    return all(
        bool(mx.max(mx.abs(one - other)) <= _DIFFERENCE_MAX * mx.max(mx.abs(one)))
        for one, other in zip(products, others, strict=True)
    )


def _mapped_library() -> tuple[Path, int]:
    """Return the file of MLX's library and the address at which the linker mapped its start."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, _, offset, *_, path = line.split(maxsplit=5)
        if int(offset, 16) == 0 and path.endswith("/libmlx.so"):
            return Path(path), int(addresses.split("-")[0], 16)
    raise LookupError("libmlx.so is not loaded")


@cache
def _offset(path: Path) -> int:
    """Return where a library has its entry for ``cblas_sgemm``, relative to its mapped start."""
    image = path.read_bytes()
    jump_slot = _JUMP_SLOTS.get(platform.machine())
    sections = list(_sections(image))
    for kind, at, size, link in sections:
        if kind != _RELOCATIONS_WITH_ADDENDS:
            continue
        _, symbols_at, _, names_link = sections[link]
        names_at = sections[names_link][1]
        for offset, info, _ in struct.iter_unpack("<QQq", image[at : at + size]):
            if info & 0xFFFFFFFF != jump_slot:
                continue
            (name,) = struct.unpack_from("<I", image, symbols_at + _SYMBOL_BYTES * (info >> 32))
            if image.startswith(_FUNCTION.encode() + b"\0", names_at + name):
                return int(offset)
    raise LookupError(f"{path} does not call {_FUNCTION}")


def _sections(image: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Yield type, offset, size and link of each section of a 64-bit ELF file."""
    (table_at,) = struct.unpack_from("<Q", image, 0x28)
    entry_bytes, count = struct.unpack_from("<HH", image, 0x3A)
    for index in range(count):
        _, kind, _, _, at, size, link = struct.unpack_from(
            "<IIQQQQI", image, table_at + index * entry_bytes
        )
        yield kind, at, size, link
