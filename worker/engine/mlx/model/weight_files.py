"""Checks the files of a model's weights without reading the weights."""

from __future__ import annotations

import json
from pathlib import Path

from ops.models.hub_cache import has_weights
from worker.engine.ports import ModelLoadError

#: Bytes of the length in front of a header, and most bytes of a header, as the format defines.
_LENGTH_BYTES, _HEADER_BYTES_MAX = 8, 100_000_000


def check_weight_files(model_dir: Path) -> None:
    """Refuse a directory whose weights are incomplete.

    Raises:
        ModelLoadError: A file that the index names is missing, or a file is not a whole one.
    """
    if not has_weights(model_dir):
        msg = f"{model_dir} does not hold all files of weights that its index names"
        raise ModelLoadError(msg)
    for path in sorted(model_dir.glob("*.safetensors")):
        try:
            whole = _size_in_header(path)
            size = path.stat().st_size
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            msg = f"{path} is no file of weights: {error}"
            raise ModelLoadError(msg) from error
        if size != whole:
            msg = f"{path} has {size} bytes, and its header describes {whole}"
            raise ModelLoadError(msg)


def _size_in_header(path: Path) -> int:
    """Return the size of a safetensors file as its header has it."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        if not 0 < length <= _HEADER_BYTES_MAX:
            msg = f"its header has {length} bytes"
            raise ValueError(msg)
        header = json.loads(file.read(length))
    ends = [int(part["data_offsets"][1]) for name, part in header.items() if name != "__metadata__"]
    return _LENGTH_BYTES + length + max(ends, default=0)
