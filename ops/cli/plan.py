"""``semantic models plan``: does a model fit this machine, before it is downloaded."""

from __future__ import annotations

import json as jsonlib
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from domain.kv.plan import AGENTS_DEFAULT, CONTEXT_TOKENS_DEFAULT, size_text
from domain.kv.spec import PACKED_BITS
from domain.model.registry import NO_DRAFTER
from ops.cli.options import Json, fail, overrides, settings_or_exit
from ops.cli.output import ability_pairs, echo, print_json, print_pairs
from ops.exit_codes import ExitCode

if TYPE_CHECKING:
    from domain.model.registry import ModelEntry
    from ops.settings.settings import Settings

_GIB = 1 << 30
#: Machines are sold in units of 2^30 bytes that are called GB.
_UNITS = {"gb": _GIB, "gib": _GIB, "mb": 1 << 20, "mib": 1 << 20, "tb": 1 << 40, "tib": 1 << 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)", re.IGNORECASE)
#: Widths that MLX packs weights into.
_BITS = (2, 3, 4, 5, 6, 8)
#: Prompt tokens of the planned step, whose attention scores count. A GPU computes larger pieces,
#: and stores no scores for common head sizes.
_PIECE_TOKENS = 256


def memory_size(text: str) -> int:
    """Return a size such as ``24GB`` in bytes; GB and GiB are both 2^30 bytes.

    Raises:
        typer.BadParameter: The text is no size.
    """
    match = _SIZE.fullmatch(text.strip())
    unit = _UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise typer.BadParameter(f"{text!r} is no size; examples: 24GB, 24GiB, 16000MB")
    size = int(float(match[1]) * unit)
    if not size:
        raise typer.BadParameter(f"{text!r} is no memory")
    return size


def _weight_bits(bits: int | None) -> int | None:
    if bits is not None and bits not in _BITS:
        raise typer.BadParameter(f"{bits} is none of {', '.join(map(str, _BITS))}")
    return bits


def _kv_bits(bits: int | None) -> int | None:
    if bits not in {None, 0, PACKED_BITS}:
        raise typer.BadParameter(f"{bits} is neither 0 nor {PACKED_BITS}")
    return bits


DiskRate = Annotated[
    float,
    typer.Option("--disk-rate", min=0.01, help="What the disk reads, in 10^9 bytes a second."),
]
KvBits = Annotated[
    int | None,
    typer.Option(
        "--kv-bits",
        callback=_kv_bits,
        help="Plan keys and values in 8 bits, or 0: as they are; default: as configured.",
    ),
]
Draft = Annotated[
    str | None,
    typer.Option(
        "--draft",
        help="A draft model, mtp for the head of the weights, or off; default: as configured.",
    ),
]


def plan(
    model: Annotated[
        str,
        typer.Argument(help="A registered name, a hub id, a directory, or a config.json."),
    ],
    memory: Annotated[
        str | None,
        typer.Option(
            "--memory",
            metavar="SIZE",
            help="Plan a Mac with this memory, such as 24GB; default: this machine.",
        ),
    ] = None,
    agents: Annotated[
        int, typer.Option("--agents", min=1, help="Contexts that take turns.")
    ] = AGENTS_DEFAULT,
    context: Annotated[int, typer.Option("--context", min=1, help="Tokens of each context.")] = (
        CONTEXT_TOKENS_DEFAULT
    ),
    bits: Annotated[
        int | None,
        typer.Option(
            "--bits",
            callback=_weight_bits,
            help="Plan weights that are not quantized as if they were: 2, 3, 4, 5, 6 or 8 bits.",
        ),
    ] = None,
    kv_bits: KvBits = None,
    *,
    draft: Draft = None,
    disk_rate: DiskRate = 2.0,
    json: Json = False,
) -> None:
    """Plan a model before its download: what fits in memory, what moves to disk.

    Reads config.json only: in a directory, in the hub's cache, or from the hub.
    Counts the weights, one step, and the KV cache of each context. Exits with 0
    if one context fits, 1 if none does, 78 if the configuration is not usable.
    """
    memory_bytes = None if memory is None else memory_or_exit(memory)
    settings = settings_or_exit(overrides())
    entry = _registered(settings, model)
    request = {
        "model": entry.source,
        "memory_bytes": memory_bytes,
        "agents": agents,
        "context_tokens": context,
        "bits": bits,
        "kv_bits": entry.kv_bits if kv_bits is None else kv_bits,
        "draft": (draft or entry.draft) if settings.engine.speculation else NO_DRAFTER,
        "piece_tokens": _PIECE_TOKENS,
        "batch": settings.engine.max_batch_size,
        "disk_bytes_per_s": disk_rate * 1e9,
        "disk_budget_bytes": settings.cache.disk_budget_bytes or None,
    }
    planned = _planned(settings, request)
    (print_json if json else _print_plan)(planned)
    if not planned["fits"]:
        raise typer.Exit(int(ExitCode.FAILED))


def _registered(settings: Settings, model: str) -> ModelEntry:
    """Return a registered model; other texts are sources already."""
    from domain.model.registry import ModelEntry
    from ops.models.hub_cache import why_not_found
    from ops.models.registry import model_registry

    entry = model_registry(settings).get(model)
    if entry is None:
        entry = ModelEntry(name=model, source=model, kv_bits=settings.cache.kv_bits)
    is_file = Path(entry.source).expanduser().is_file()
    if not is_file and (reason := why_not_found(entry, "config.json")) is not None:
        fail(reason, ExitCode.CONFIG)
    return entry


def memory_or_exit(text: str) -> int:
    """Return the size that ``--memory`` names; a text that is none exits with one line."""
    try:
        return memory_size(text)
    except typer.BadParameter as error:
        fail(f"--memory: {error.message}", ExitCode.USAGE)


def _planned(settings: Settings, request: dict[str, Any]) -> dict[str, Any]:
    """Return the plan from ``worker.plan``, a process: ``ops`` must not import ``worker``."""
    from ops.supervisor.parts import child_environment, module_argv

    environment = child_environment(os.environ, settings, {"HF_HUB_DISABLE_PROGRESS_BARS": "1"})
    try:
        done = subprocess.run(
            module_argv("worker.plan"),
            env=environment,
            input=jsonlib.dumps(request),
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
    except KeyboardInterrupt:
        raise typer.Exit(int(ExitCode.INTERRUPTED)) from None
    if not done.stdout:
        echo(done.stderr, err=True)
        fail(f"the planner ended early, with exit code {done.returncode}", ExitCode.FAILED)
    answer: dict[str, Any] = jsonlib.loads(done.stdout)
    if "error" in answer:
        fail(answer["error"]["message"], ExitCode.CONFIG)
    planned: dict[str, Any] = answer["plan"]
    return planned


def _print_plan(planned: dict[str, Any]) -> None:
    print_pairs(list(_rows(planned)))
    echo("")
    for note in planned["notes"]:
        echo(note)


def _rows(planned: dict[str, Any]) -> Iterator[tuple[str, str]]:
    agents, tokens = planned["agents"], planned["context_tokens"]
    bits = "" if planned["bits"] is None else f", at {planned['bits']} bits"
    yield "model", planned["model"] + bits
    yield "contexts", f"{agents} x {tokens:,} tokens"
    usable = f"{size_text(planned['usable_bytes'])} usable ({planned['device_source']})"
    yield "memory", f"{planned['memory_bytes'] / _GIB:,.0f} GiB, {usable}"
    yield "weights", size_text(planned["weights_bytes"])
    left = "usable - weights"
    if planned["drafter_bytes"]:
        yield "drafter", f"{size_text(planned['drafter_bytes'])} (head or draft model)"
        left += " - drafter"
    yield "one step", f"{size_text(planned['step_bytes'])} (estimate)"
    yield (
        "for contexts",
        f"{size_text(planned['kv_budget_bytes'])} ({left} - one step)",
    )
    packed = " in 8 bits" if planned["kv_bits"] else ""
    yield "KV per token", f"{planned['kv_token_bytes']:,} bytes{packed}"
    if planned["kv_fixed_bytes"]:
        yield "KV fixed", f"{size_text(planned['kv_fixed_bytes'])} a context (windows and states)"
    yield "one context", size_text(planned["context_bytes"])
    yield "in memory", f"{planned['resident_contexts']} of {agents} contexts"
    yield "longest", f"{planned['longest_context_tokens']:,} tokens, alone"
    yield "on disk", f"{size_text(planned['disk_bytes'])} for all contexts"
    if planned["restored_bytes"]:
        rate = f"{size_text(planned['disk_bytes_per_s'])}/s"
        seconds = f"about {planned['restored_s']:.1f} s at {rate}"
        yield "a switch", f"reads {size_text(planned['restored_bytes'])}, {seconds}"
    yield from ability_pairs(planned["abilities"])
