"""The texts of an overview: cells of the tables and lines of a plain snapshot. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ops.terminal_text import visible_line

#: An overview as ``GET /admin/overview`` returns it; missing fields show as empty.
Overview = Mapping[str, Any]
Rows = list[list[str]]

RUNNING_HEAD: Final = ("job", "agent", "phase", "prompt", "tokens", "tok/s", "cached", "ends in")
WAITING_HEAD: Final = ("job", "agent", "place", "waits for", "starts in")
FINISHED_HEAD: Final = ("job", "agent", "outcome", "cached", "first", "total", "missed because")
_BAR_CELLS: Final = 10
_ID_CHARS: Final = 8
_NAME_CHARS: Final = 24
_MINUTE_S, _HOUR_S = 60, 3600


def plain(text: object, width: int = _NAME_CHARS) -> str:
    """Return a text that cannot control a terminal, cut to a width."""
    clean = visible_line(str(text))
    return clean if len(clean) <= width else clean[: width - 1] + "…"


def size(size_bytes: float | None) -> str:
    """Return a size in MB or GB of 10^6 and 10^9 bytes."""
    if size_bytes is None:
        return "-"
    return f"{size_bytes / 1e9:.1f} GB" if size_bytes >= 1e8 else f"{size_bytes / 1e6:.0f} MB"  # noqa: PLR2004 - as named


def seconds(value: float | None) -> str:
    """Return a duration in seconds, minutes or hours."""
    if value is None:
        return "-"
    if value < _MINUTE_S:
        return f"{value:.1f} s"
    if value < _HOUR_S:
        return f"{value / _MINUTE_S:.0f} min"
    return f"{value / _HOUR_S:.1f} h"


def _ms(value: float | None) -> str:
    return "-" if value is None else seconds(value / 1000)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _count(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def bar(done: float, total: float, cells: int = _BAR_CELLS) -> str:
    """Return a bar that needs no colour."""
    filled = round(cells * min(1.0, done / total)) if total > 0 else 0
    return "█" * filled + "·" * (cells - filled)


def short_id(job: object) -> str:
    """Return the end of a job's id, which differs between jobs."""
    return plain(job, width=64)[-_ID_CHARS:]


def title(overview: Overview) -> str:
    """Return the state of the service in one line."""
    parts = [
        f"semantic {plain(overview.get('version', ''))}",
        plain(overview.get("state", "")),
        plain(overview.get("model") or "no model", width=48),
    ]
    if overview.get("problem"):
        parts.append(plain(overview["problem"], width=200))
    return " · ".join(part for part in parts if part)


def rates(overview: Overview) -> str:
    """Return the rates in one line."""
    found = overview.get("rates") or {}
    return (
        f"{found.get('tokens_per_s') or 0:.1f} tok/s · "
        f"{_count(found.get('prompt_tokens_per_s') or 0)} prompt tok/s · "
        f"first token {_ms(found.get('first_token_ms'))} · "
        f"cached {_share(found.get('cached_share'))} · "
        f"{found.get('running', 0)} running, {found.get('queue_depth', 0)} waiting"
    )


def memory(overview: Overview) -> str:
    """Return memory and disk in one line."""
    found, disk = overview.get("memory"), overview.get("disk")
    parts = []
    if found:
        taken = found["weights"] + found["live"] + found["kept"]
        parts.append(
            f"memory [{bar(taken, found['ceiling'])}] weights {size(found['weights'])},"
            f" live {size(found['live'])}, kept {size(found['kept'])}"
            f" of {size(found['ceiling'])}"
        )
    if disk:
        parts.append(
            f"disk [{bar(disk['used'], disk['budget'])}] {size(disk['used'])}"
            f" of {size(disk['budget'])} {plain(disk['state'])}"
        )
    if overview.get("disk_free") is not None:
        parts.append(f"{size(overview['disk_free'])} free")
    return " · ".join(parts)


def workers(overview: Overview) -> list[str]:
    """Return one line for each worker that is not simply ready, or for each of several."""
    found = overview.get("workers") or []
    if len(found) == 1 and found[0]["state"] == "ready":
        return []
    return [
        f"{plain(one['id'], width=48)} {plain(one['state'])}"
        + (f" for {seconds(one['age_s'])}" if one["state"] == "dead" else "")
        + f" · {plain(one.get('model') or '-', width=48)}"
        + f" · {one['running']}/{one.get('places') or '-'} running, {one['waiting']} waiting"
        + (f" · {plain(one['step'], width=100)}" if one.get("step") else "")
        for one in found
    ]


def running_rows(overview: Overview) -> Rows:
    """Return the cells of the running jobs."""
    return [
        [
            short_id(row["job"]),
            plain(row["agent"] or "-"),
            plain(row["phase"]) + (" (ends)" if row["cancel_requested"] else ""),
            _prompt(row),
            _count(row["generated_tokens"]),
            "-" if row["tokens_per_s"] is None else f"{row['tokens_per_s']:.1f}",
            _cached(row),
            seconds(row["eta_s"]),
        ]
        for row in overview.get("running") or []
    ]


def waiting_rows(overview: Overview) -> Rows:
    """Return the cells of the waiting jobs."""
    return [
        [
            short_id(row["job"]),
            plain(row["agent"] or "-"),
            "-" if row["position"] is None else str(row["position"] + 1),
            plain(row["reason"]),
            seconds(row["eta_s"]),
        ]
        for row in overview.get("waiting") or []
    ]


def finished_rows(overview: Overview) -> Rows:
    """Return the cells of the jobs that have ended."""
    return [
        [
            short_id(row["job"]),
            plain(row["agent"] or "-"),
            plain(row["error"] or row["outcome"]),
            _cached(row),
            _ms(row["first_token_ms"]),
            _ms(row["total_ms"]),
            _miss(row["miss"]),
        ]
        for row in overview.get("finished") or []
    ]


def _prompt(row: Mapping[str, Any]) -> str:
    read, prompt = row["read_tokens"], row["prompt_tokens"]
    return f"{bar(read, prompt)} {_count(read)}/{_count(prompt)}"


def _cached(row: Mapping[str, Any]) -> str:
    prompt = row["prompt_tokens"]
    return _share(row["cached_tokens"] / prompt) if prompt else "-"


def _miss(miss: Mapping[str, Any] | None) -> str:
    if miss is None:
        return ""
    return plain(f"{miss['cause']} at {miss['place']}", width=60)


def snapshot(overview: Overview) -> list[str]:
    """Return the overview as plain lines, for pipes and for ``--once``."""
    lines = [title(overview), rates(overview), memory(overview), *workers(overview)]
    for name, head, rows in (
        ("running", RUNNING_HEAD, running_rows(overview)),
        ("waiting", WAITING_HEAD, waiting_rows(overview)),
        ("finished", FINISHED_HEAD, finished_rows(overview)),
    ):
        lines += ["", f"{name} ({len(rows)})"]
        lines += _aligned(head, rows) if rows else []
    return lines


def timeline(found: Mapping[str, Any]) -> list[str]:
    """Return the timeline of a job as lines."""
    lines = [
        f"{_ms(step['after_ms']):>10}  {plain(step.get('text') or step['what'], width=200)}"
        for step in found.get("steps") or []
    ]
    return [*lines, f"{_ms(found.get('total_ms'))}, {_ms(found.get('queued_ms'))} of it queued"]


def _aligned(head: Sequence[str], rows: Rows) -> list[str]:
    cells = [list(head), *rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    ]
