"""Output of ``semantic replay``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ops.cli.output import echo
from ops.cli.table import print_pairs, print_table

_HASH_CHARS = 12
_FINGERPRINT_CHARS = len("sha256:") + _HASH_CHARS


def print_replayed(result: dict[str, Any]) -> None:
    """Print the replay result of one job."""
    verdict = result["verdict"]
    if verdict == "replayed":
        echo(result["text"])
        return
    if verdict == "refused":
        echo(f"{result['job']} cannot be replayed: {result['message']}", err=True)
        return
    print_pairs(_pairs(result))
    if result["divergence"] is not None:
        echo("")
        _print_divergence(result["divergence"])


def print_table_of(results: Sequence[dict[str, Any]]) -> None:
    """Print the replay results of many jobs and the number of each kind."""
    rows = [
        (
            result["job"],
            result["verdict"],
            f"{result['tokens']:,}",
            str(result["attempts"] or ""),
            f"{result['took_ms'] / 1000:,.1f} s" if result["took_ms"] else "",
            _note(result),
        )
        for result in results
    ]
    print_table(("job", "verdict", "tokens", "attempts", "took", "note"), rows)
    verdicts = [result["verdict"] for result in results]
    counts = [f"{verdicts.count(name)} {name}" for name in dict.fromkeys(verdicts)]
    echo(", ".join(counts) or "no completed jobs")


def _pairs(result: dict[str, Any]) -> list[tuple[str, str]]:
    then, now = result["versions_then"], result["versions"]
    libraries = now if then in {None, now} else f"{now}; then {then}"
    pairs = [
        ("job", result["job"]),
        ("verdict", f"{result['verdict']}: {result['message']}"),
        ("token hash", result["token_hash"]),
        ("model", f"{result['model']} {result['fingerprint'][:_FINGERPRINT_CHARS]}"),
        (
            "then",
            f"attempts {result['attempts']}, {result['cached_tokens']:,} prompt tokens cached",
        ),
        ("libraries", libraries),
        ("took", f"{result['took_ms']:,.0f} ms"),
    ]
    return [(name, value) for name, value in pairs if value]


def _print_divergence(divergence: dict[str, Any]) -> None:
    echo(f"after …{_quoted(divergence['context'])}")
    rows = [(name, *_candidate(divergence[name])) for name in ("stored", "replayed")]
    print_table((f"index {divergence['index']}", "id", "text", "log-prob"), rows)
    echo(_gaps(divergence))


def _candidate(candidate: dict[str, Any]) -> tuple[str, str, str]:
    if candidate["id"] is None:
        return "", "the end", _number(candidate["logprob"])
    return str(candidate["id"]), _quoted(candidate["text"]), _number(candidate["logprob"])


def _gaps(divergence: dict[str, Any]) -> str:
    gap, draw_gap = _number(divergence["gap"]), _number(divergence["draw_gap"])
    return f"gap {gap} in log-probability, {draw_gap} in the draw"


def _note(result: dict[str, Any]) -> str:
    if result["verdict"] == "refused":
        return f"{result['reason']}: {result['message']}"
    if result["divergence"] is None:
        return "" if result["verdict"] == "same" else str(result["message"])
    return f"at index {result['divergence']['index']}, {_gaps(result['divergence'])}"


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.6f}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
