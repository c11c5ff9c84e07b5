"""``semantic cache``: the contexts on disk."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from domain.kv.plan import size_text
from ops.blockstore import maintenance
from ops.blockstore.blocks import BlockInfo, Rejected
from ops.blockstore.maintenance import Overview, companions
from ops.cli.options import DataDir, Json, fail, operator_settings, overrides
from ops.cli.output import Columns, echo, print_json, print_pairs, print_rows
from ops.exit_codes import ExitCode
from ops.settings.settings import Settings

#: Most blocks that one ``ls --blocks`` prints.
LS_BLOCKS_MAX = 1_000_000
_HASH_CHARS = 16

Models = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        help="Delete all blocks and checkpoints of this model, as ls names it; repeatable.",
    ),
]


def ls(
    blocks: Annotated[
        bool, typer.Option("--blocks", help="List each block, newest first.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, max=LS_BLOCKS_MAX, help="Most blocks.")] = 100,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify", help="Read every block; exit code 1 if one does not fit its name."
        ),
    ] = False,
    delete: Annotated[
        bool, typer.Option("--delete", help="With --verify: delete what is not whole.")
    ] = False,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Show the stored blocks and bytes of each model, or check every block.

    The service may run meanwhile; it checks each block before use.
    """
    settings = operator_settings(overrides(data_dir=data_dir))
    if delete and not verify:
        fail("--delete goes with --verify", ExitCode.USAGE)
    if verify:
        _verify(settings, delete=delete, as_json=json)
        return
    found = _overview(settings)
    newest = [_block(block) for block in list(reversed(found.blocks))[:limit]] if blocks else []
    report = _report(settings, found)
    if json:
        print_json(report | ({"blocks_listed": newest} if blocks else {}))
        return
    _print_report(report)
    if newest:
        echo("")
        print_rows(newest, _BLOCK_COLUMNS)


def _verify(settings: Settings, *, delete: bool, as_json: bool) -> None:
    """Read and check every block; exit code 1 if one does not match its name."""
    from ops.cli.log.log_options import progress_bar

    root = settings.cache_dir
    found = _overview(settings)
    bad: list[tuple[BlockInfo, Rejected]] = []
    with progress_bar("verifying") as report_done:
        for done, (info, rejected) in enumerate(maintenance.verify(root, found.blocks), 1):
            if rejected is not None:
                bad.append((info, rejected))
            if report_done is not None:
                report_done(done, len(found.blocks))
    if delete:
        _delete(root, [info for info, _ in bad])
    if as_json:
        rejects = [
            {"hash": info.hash.hex(), "model": info.model, "reason": str(why.reason)}
            | {"detail": why.detail, "deleted": delete}
            for info, why in bad
        ]
        report = {"ok": not bad, "blocks": len(found.blocks), "size_bytes": found.size_bytes}
        print_json(report | {"rejected": rejects})
    else:
        for info, why in bad:
            echo(f"{info.hash.hex()}  {why.reason}: {why.detail}")
        good = len(found.blocks) - len(bad)
        echo(f"{good:,} of {len(found.blocks):,} blocks verify ({size_text(found.size_bytes)})")
    if bad:
        raise typer.Exit(int(ExitCode.FAILED))


def gc(
    model: Models = None,
    everything: Annotated[bool, typer.Option("--all", help="Delete all blocks.")] = False,
    budget_gb: Annotated[
        float | None, typer.Option(min=0, help="Shrink to this size instead of the setting.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Delete nothing.")] = False,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Delete leftovers, blocks out of reach, and the least recently used above the cap.

    The service may run meanwhile; a block that it misses is computed again.
    """
    settings = operator_settings(overrides(data_dir=data_dir))
    found = _overview(settings)
    known = {block.model for block in found.blocks}
    models = known if everything else set(model or ())
    if models - known:
        fail(f"no blocks of model {', '.join(sorted(models - known))}", ExitCode.FAILED)
    budget_bytes = settings.cache.disk_budget_bytes if budget_gb is None else int(budget_gb * 1e9)
    plan = maintenance.plan_gc(found, budget_bytes=budget_bytes, models=models)
    doomed = [block for blocks in plan.values() for block in blocks]
    if not dry_run:
        _delete(settings.cache_dir, doomed)
        maintenance.delete_leftovers(found)
    freed_bytes = sum(block.size_bytes for block in doomed)
    if json:
        report: dict[str, Any] = {
            "dry_run": dry_run,
            "deleted": {reason: len(blocks) for reason, blocks in plan.items()},
            "leftovers": len(found.leftovers),
            "freed_bytes": freed_bytes,
            "blocks": len(found.blocks) - len(doomed),
            "size_bytes": found.size_bytes - freed_bytes,
        }
        print_json(report)
        return
    verb = "would delete" if dry_run else "deleted"
    reasons = ", ".join(f"{len(blocks):,} for {reason}" for reason, blocks in plan.items())
    echo(f"{verb} {len(doomed):,} blocks ({reasons}) and {len(found.leftovers):,} leftovers")
    echo(f"{size_text(freed_bytes)} freed, {size_text(found.size_bytes - freed_bytes)} left")


def _overview(settings: Settings) -> Overview:
    try:
        return maintenance.overview(settings.cache_dir)
    except OSError as error:
        fail(str(error), ExitCode.FAILED)


def _delete(root: Path, blocks: Sequence[BlockInfo]) -> None:
    try:
        maintenance.delete(root, blocks)
    except OSError as error:
        fail(str(error), ExitCode.FAILED)


def _report(settings: Settings, found: Overview) -> dict[str, Any]:
    checkpoints_of = companions(found.blocks)
    by_model: dict[str, list[BlockInfo]] = {}
    for block in found.blocks:
        by_model.setdefault(block.model, []).append(block)
    return {
        "dir": str(settings.cache_dir),
        "blocks": len(found.blocks),
        "size_bytes": found.size_bytes,
        "budget_bytes": settings.cache.disk_budget_bytes,
        "orphans": len(found.orphans),
        "leftovers": len(found.leftovers),
        "foreign": found.foreign,
        "models": [
            {
                "model": model,
                "checkpoints_of": checkpoints_of.get(model),
                "blocks": len(blocks),
                "tokens": sum(block.tokens for block in blocks),
                "size_bytes": sum(block.size_bytes for block in blocks),
                "used_at": _instant(max(block.used_ns for block in blocks)),
            }
            for model, blocks in sorted(by_model.items())
        ],
    }


def _print_report(report: dict[str, Any]) -> None:
    print_pairs(
        [
            ("directory", report["dir"]),
            ("size", f"{size_text(report['size_bytes'])} of {size_text(report['budget_bytes'])}"),
            ("blocks", f"{report['blocks']:,} ({report['orphans']:,} out of reach)"),
            ("leftovers", f"{report['leftovers']:,}"),
            ("foreign files", f"{report['foreign']:,}"),
        ]
    )
    if report["models"]:
        echo("")
        print_rows(report["models"], _MODEL_COLUMNS)


def _block(block: BlockInfo) -> dict[str, Any]:
    return {
        "hash": block.hash.hex(),
        "parent": block.parent.hex() if block.parent else None,
        "model": block.model,
        "tokens": block.tokens,
        "size_bytes": block.size_bytes,
        "used_at": _instant(block.used_ns),
    }


def _instant(time_ns: int) -> str:
    return datetime.fromtimestamp(time_ns // 10**9, UTC).isoformat().replace("+00:00", "Z")


_MODEL_COLUMNS: Final[Columns] = {
    "model": "model",
    "kind": lambda row: f"checkpoints of {name}" if (name := row["checkpoints_of"]) else "blocks",
    "files": lambda row: f"{row['blocks']:,}",
    "tokens": lambda row: f"{row['tokens']:,}",
    "size": lambda row: size_text(row["size_bytes"]),
    "last used": "used_at",
}
_BLOCK_COLUMNS: Final[Columns] = {
    "block": lambda row: row["hash"][:_HASH_CHARS],
    "after": lambda row: (row["parent"] or "-")[:_HASH_CHARS],
    "model": "model",
    "tokens": "tokens",
    "size": lambda row: size_text(row["size_bytes"]),
    "last used": "used_at",
}


#: The commands of the group, by name.
COMMANDS: Final = {"ls": ls, "gc": gc}
