"""``semantic log erase`` without an agent: what is stored, and what the rules erase."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from ops.adapters.erasing.sweep import (
    BlocksEraser,
    ItemsEraser,
    RetentionRules,
    SweepPlan,
    TextSweeper,
    rules_of,
)
from ops.adapters.log_admin.stored import StoredBytes, measure_stored
from ops.cli.log.erasers import erasers
from ops.cli.log.log_options import errors_as_one_line, log_engine
from ops.cli.output import echo
from ops.clock import RandomIds, SystemClock
from ops.settings import Settings


def sweep(settings: Settings, text_days: float | None, *, dry_run: bool, as_json: bool) -> None:
    """Erase now what was deleted and what the rules overtake, or show what would go.

    Args:
        settings: Name the log and the rules.
        text_days: In place of ``retention.text_days``.
        dry_run: Print how much is stored, the rules and what would go; erase nothing.
        as_json: Print JSON.
    """
    if dry_run:
        _show(settings, text_days, as_json=as_json)
        return
    with errors_as_one_line():
        with log_engine(settings):
            pass  # there is one
        with _sweeper(settings, text_days=text_days, erases=True) as sweeper:
            plan = sweeper.sweep()
    if as_json:
        echo(json.dumps({"dry_run": False} | _report(plan)))
    else:
        _print(plan, "erased")


def _show(settings: Settings, text_days: float | None, *, as_json: bool) -> None:
    with errors_as_one_line():
        with log_engine(settings):
            stored = measure_stored(settings.data_dir, settings.cache_dir, settings.log_url)
        with _sweeper(settings, text_days=text_days) as sweeper:
            plan = sweeper.plan()
    if as_json:
        shown = {"stored": _stored(stored), "rules": _rules(settings)}
        echo(json.dumps({"dry_run": True} | _report(plan) | shown))
        return
    for name, size in _stored(stored).items():
        echo(f"{name:<16} {size / 1e6:>12,.1f} MB")
    rules = {name: value for name, value in _rules(settings).items() if value is not None}
    named = ", ".join(f"{name} {value:g}" for name, value in rules.items())
    echo(f"rules            {named or 'none: only deletions erase'}")
    _print(plan, "a sweep would erase")


@contextmanager
def _sweeper(
    settings: Settings, *, text_days: float | None = None, erases: bool = False
) -> Iterator[TextSweeper]:
    rules = rules_of(settings.retention, text_days=text_days)
    if not erases:
        with closing(_made(settings, rules, lambda _: None, lambda _: None)) as made:
            yield made
        return
    with (
        erasers(settings) as beside,
        closing(_made(settings, rules, beside.items, beside.blocks)) as made,
    ):
        yield made
        made.remove_traces(is_served=beside.is_served)


def _made(
    settings: Settings, rules: RetentionRules, items: ItemsEraser, blocks: BlocksEraser
) -> TextSweeper:
    return TextSweeper(
        settings.log_url,
        rules,
        clock=SystemClock(),
        ids=RandomIds(),
        erase_items=items,
        erase_blocks=blocks,
    )


def _stored(stored: StoredBytes) -> dict[str, int]:
    return {
        "texts": stored.texts,
        "log": stored.log,
        "archives": stored.archives,
        "broker": stored.broker,
        "cache": stored.cache,
    }


def _rules(settings: Settings) -> dict[str, float | None]:
    return settings.retention.model_dump()


def _report(plan: SweepPlan) -> dict[str, Any]:
    return {
        "texts": len(plan.doomed.sizes),
        "text_bytes": sum(plan.doomed.sizes.values()),
        "kept_bytes": plan.doomed.kept_bytes,
        "jobs": len(plan.doomed.jobs),
        "blocks": len(plan.blocks),
        "archives": [archive.file for archive in plan.archives],
        "ended_before": plan.doomed.cut.ended_before,
    }


def _print(plan: SweepPlan, verb: str) -> None:
    report = _report(plan)
    echo(
        f"{verb}: {report['texts']:,} texts ({report['text_bytes']:,} bytes) of "
        f"{report['jobs']:,} jobs, {report['blocks']:,} blocks of context, "
        f"{len(report['archives']):,} archives"
    )
