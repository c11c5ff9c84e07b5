"""LoRA adapters over the weights of a model, which stay in memory from one adapter to the next."""

from __future__ import annotations

import gc
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
import mlx_lm.utils
from mlx.utils import tree_unflatten

from worker.engine.mlx.cpu import computes_on_cpu
from worker.engine.mlx.rows.ragged_states import RowSupport
from worker.engine.ports import ModelLoadError

CONFIG_FILE: Final = "adapter_config.json"
WEIGHTS_FILE: Final = "adapters.safetensors"
#: Arrays that an adapter adds to a layer (``mlx_lm.tuner``).
_ADDED: Final = ("lora_a", "lora_b", "m")


def checked_adapter(directory: str) -> Path:
    """Return the directory of an adapter.

    Raises:
        ModelLoadError: A file is missing, or it holds no LoRA or DoRA adapter of mlx-lm.
    """
    path = Path(directory).expanduser()
    missing = [name for name in (CONFIG_FILE, WEIGHTS_FILE) if not (path / name).is_file()]
    if missing:
        msg = f"{path} holds no adapter of mlx_lm.lora: {' and '.join(missing)} missing"
        raise ModelLoadError(msg)
    try:
        config = json.loads((path / CONFIG_FILE).read_text())
    except ValueError as error:
        raise ModelLoadError(f"{path / CONFIG_FILE} is not JSON: {error}") from error
    if not isinstance(config, dict) or "lora_parameters" not in config:
        msg = f"{path / CONFIG_FILE} has no lora_parameters: mlx_lm.lora did not write it"
        raise ModelLoadError(msg)
    if config.get("fine_tune_type", "lora") == "full":
        raise ModelLoadError(f"{path} replaces all weights; make a model of it with mlx_lm.fuse")
    return path


def apply_adapter(network: Any, adapter: Path) -> Mapping[str, Any]:  # noqa: ANN401 - mlx-lm ships no types
    """Add an adapter to a network; return the layers that it replaced, by their places.

    On a CPU its arrays become float32, as those of the network.

    Raises:
        KeyError, OSError, ValueError: The adapter does not belong to this network.
    """
    before = dict(network.named_modules())
    try:
        mlx_lm.utils.load_adapters(network, str(adapter))
    finally:
        after = dict(network.named_modules())
        replaced = {name: part for name, part in before.items() if after.get(name) is not part}
    if computes_on_cpu():
        network.apply(lambda array: array.astype(mx.float32), filter_fn=_is_added)
    network.eval()
    return replaced


def remove_adapter(network: Any, replaced: Mapping[str, Any]) -> None:  # noqa: ANN401 - mlx-lm ships no types
    """Put back the layers that ``apply_adapter`` returned."""
    if replaced:
        network.update_modules(tree_unflatten(list(replaced.items())))


def _is_added(module: Any, name: str, value: Any) -> bool:  # noqa: ANN401 - mlx-lm ships no types
    is_array = isinstance(value, mx.array)
    return bool(module.valid_parameter_filter(module, name, value)) and (
        not is_array or name in _ADDED
    )


@dataclass(frozen=True, slots=True)
class BaseWeights:
    """A loaded network whose adapter is removed, and what its directory holds beside it.

    Attributes:
        files: Size and times of its files; see ``identities``.
        tokens: Tokenizer and grammars.
        support: How it computes several rows.
    """

    files: tuple[tuple[str, tuple[int, ...]], ...]
    network: Any
    config: Mapping[str, Any]
    tokens: Any
    support: RowSupport


@dataclass(slots=True, eq=False)
class KeptBase:
    """The weights that one worker passes on to the next one of its process.

    The arrays are computed, so that another thread may use them.
    """

    _base: BaseWeights | None = None
    _replaced: Mapping[str, Any] = field(default_factory=dict)

    def keep(self, base: BaseWeights, replaced: Mapping[str, Any]) -> None:
        """Keep a network, with the layers that its adapter replaced."""
        self._base, self._replaced = base, replaced

    def take(self, files: tuple[tuple[str, tuple[int, ...]], ...]) -> BaseWeights | None:
        """Return the network of unchanged files without its adapter; else forget it."""
        base, replaced = self._base, self._replaced
        self._base, self._replaced = None, {}
        if base is None or base.files != files:
            return None
        remove_adapter(base.network, replaced)
        # What the worker before held besides, its contexts above all.
        gc.collect()
        mx.clear_cache()
        return base
