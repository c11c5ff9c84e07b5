"""Plans the model that standard input names, from its ``config.json``; writes the plan as JSON."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from huggingface_hub import hf_hub_download

from domain.errors import InvalidRequest, SemanticError
from domain.kv.plan import (
    HEAD_SHARE_MAX,
    DrafterMemory,
    ModelFootprint,
    Workload,
    plan_memory,
    planned_mac,
)
from domain.model.registry import DRAFT_HEAD, NO_DRAFTER
from domain.values import Degree
from ops.data_dir.permissions import create_private_files
from ops.exit_codes import ExitCode
from ops.models.hub_cache import WEIGHTS
from worker.engine.mlx.memory.device import ProcessDevice
from worker.engine.mlx.model.draft_head import read_head
from worker.engine.mlx.model.draft_model import DRAFT_TOKENS_HELD
from worker.engine.mlx.model.loader import from_hub, local_path
from worker.engine.mlx.model.sizing import size_model
from worker.engine.ports import ModelLoadError

_NAME = "config.json"


class ConfigUnusable(InvalidRequest):
    """There is no ``config.json`` with a JSON object; the message has what was tried."""


def read_config(model_id: str) -> dict[str, Any]:
    """Return the configuration of a model.

    Args:
        model_id: A directory, a configuration file, a hub id (``owner/name``), or
            ``semantic-demo``.

    Raises:
        ConfigUnusable: The file is not found, here or on the hub, or holds no JSON object.
    """
    file = _find(model_id)
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigUnusable(f"{file} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigUnusable(f"{file} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise ConfigUnusable(f"{file} holds no JSON object")
    return config


def _find(model_id: str) -> Path:
    file = Path(model_id).expanduser()
    if file.is_file():
        return file
    fetch = partial(hf_hub_download, model_id, _NAME)
    try:
        directory = local_path(model_id)
        if directory is None:
            return Path(from_hub(model_id, fetch, what=f"its {_NAME}", downloads=True))
    except ModelLoadError as error:
        raise ConfigUnusable(error.message) from error
    if not (directory / _NAME).is_file():
        raise ConfigUnusable(f"{directory} holds no {_NAME}")
    return directory / _NAME


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """What to plan.

    Attributes:
        model: A directory, a configuration file, a hub id, or ``semantic-demo``.
        memory_bytes: Memory of the planned Mac; ``None`` for this machine.
        agents: Contexts that take turns.
        context_tokens: Length of each.
        bits: Quantizes a configuration that is not quantized; ``None`` keeps its dtype.
        kv_bits: Bits of keys and values; 0 for the dtype of the model.
        draft: What drafts, as ``models.NAME.draft``; ``None`` for the head that the weights bring.
        piece_tokens: Prompt tokens computed in one step.
        batch: Sequences decoded in one step.
        disk_bytes_per_s: Rate at which a context is read back.
        disk_budget_bytes: Limit of the block files; ``None`` for no limit.
    """

    model: str
    memory_bytes: int | None
    agents: int
    context_tokens: int
    bits: int | None
    kv_bits: int
    piece_tokens: int
    batch: int
    disk_bytes_per_s: float
    disk_budget_bytes: int | None
    draft: str | None = None


def footprint_of(request: PlanRequest) -> ModelFootprint:
    """Return what the model of a request takes, with a drafter that the request names.

    Raises:
        SemanticError: The configuration is missing, garbled or not supported.
    """
    sized = partial(size_model, piece_tokens=request.piece_tokens, batch=request.batch)
    config = read_config(request.model)
    model = sized(config, bits=request.bits, kv_bits=request.kv_bits)
    draft, refuses = request.draft, model.abilities.speculation.degree is Degree.NO
    # A conversion by mlx-lm leaves the head out.
    if draft == NO_DRAFTER or refuses or (draft is None and request.bits is not None):
        return replace(model, head=None)
    if draft is None or draft == DRAFT_HEAD:
        head = _head_here(request.model, model.head)
        asked_bytes = 0 if head is None or draft is None else head.bytes_of(request.batch)
        return replace(model, head=head, drafter_bytes=asked_bytes)
    drafting = sized(read_config(draft))
    row_bytes = drafting.spec.live_bytes(DRAFT_TOKENS_HELD)
    drafter = DrafterMemory(weights_bytes=drafting.weights_bytes, row_bytes=row_bytes)
    return replace(model, head=None, drafter_bytes=drafter.bytes_of(request.batch))


def _head_here(model_id: str, head: DrafterMemory | None) -> DrafterMemory | None:
    """Return what a head takes, by the weights of the model where they are here."""
    directory = _find(model_id).parent
    if head is None or not any(directory.glob(WEIGHTS)):
        return head
    tensors = read_head(directory)
    size_bytes = sum(array.nbytes for array in tensors.values())
    return replace(head, weights_bytes=size_bytes) if tensors else None


def _with_head(model: ModelFootprint, usable_bytes: int, rows: int) -> ModelFootprint:
    """Return a model with the head that a load takes unasked."""
    head, left_bytes = model.head, usable_bytes - model.weights_bytes
    if head is None or model.drafter_bytes or head.weights_bytes > HEAD_SHARE_MAX * left_bytes:
        return model
    return replace(model, drafter_bytes=head.bytes_of(rows))


def plan_of(request: PlanRequest, model: ModelFootprint) -> dict[str, Any]:
    """Return the plan of a model as the object that ``--json`` prints."""
    memory_bytes = request.memory_bytes
    device = ProcessDevice().memory() if memory_bytes is None else planned_mac(memory_bytes)
    workload = Workload(
        agents=request.agents,
        context_tokens=request.context_tokens,
        disk_bytes_per_s=request.disk_bytes_per_s,
        disk_budget_bytes=request.disk_budget_bytes,
    )
    plan = plan_memory(_with_head(model, device.usable_bytes, request.batch), workload, device)
    return {
        "model": request.model,
        "bits": request.bits,
        "kv_bits": request.kv_bits,
        "model_context_tokens": model.context_length,
        "memory_bytes": device.memory_bytes,
        "device_source": device.source,
        "disk_bytes_per_s": request.disk_bytes_per_s,
        "abilities": asdict(model.abilities),
        **asdict(plan),
    }


def main() -> int:
    """Plan what standard input names; return the exit code."""
    create_private_files()
    output = sys.stdout
    # Libraries that print must not write beside the JSON.
    sys.stdout = sys.stderr
    request = PlanRequest(**json.load(sys.stdin))
    try:
        answer = {"plan": plan_of(request, footprint_of(request))}
        code = ExitCode.OK
    except SemanticError as error:
        answer = {"error": {"code": error.code, "message": error.message}}
        code = ExitCode.CONFIG
    output.write(json.dumps(answer) + "\n")
    output.flush()
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
