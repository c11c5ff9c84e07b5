"""Cache misses of an agent's turns with their causes, for ``agents show``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ops.cli.options import overrides, settings_or_exit

if TYPE_CHECKING:
    from pathlib import Path

    from domain.usecases.recent_ends import CacheDiagnosis
    from domain.values import JobId


def read_reasons(jobs: Iterable[JobId], data_dir: Path | None) -> dict[JobId, CacheDiagnosis]:
    """Return the cache miss of each job; jobs without one and archived jobs are left out."""
    from domain.usecases.recent_ends import diagnose_cache  # noqa: PLC0415 - keeps --help fast
    from ops.adapters.event_log.database import reader_engine  # noqa: PLC0415 - the same
    from ops.adapters.event_log.projections.jobs import SqlJobViews  # noqa: PLC0415 - the same
    from ops.adapters.event_log.reader import LogReader  # noqa: PLC0415 - the same

    engine = reader_engine(settings_or_exit(overrides(data_dir=data_dir)).log_url)
    try:
        log, views = LogReader(engine), SqlJobViews(engine)
        found = {job: diagnose_cache(job, views=views, log=log, payloads=log) for job in jobs}
    finally:
        engine.dispose()
    return {job: story for job, story in found.items() if story and story.divergence}


def reason_text(story: CacheDiagnosis | None) -> str:
    """Return a cache miss as a short text."""
    if story is None or story.divergence is None:
        return ""
    parted = story.divergence
    return f"{parted.cause.value} at {parted.place} (token {story.cached_tokens:,})"


def cache_line(cache: dict[str, Any] | None) -> str:
    """Return the cached and missed tokens of a job object as one line."""
    if cache is None:
        return ""
    line = f"{cache['cached_tokens']:,} of {cache['prompt_tokens']:,} tokens known"
    if cache["source"] != "none":
        line += f", from {cache['source']}"
    parted = cache["divergence"]
    if parted is None:
        return line
    line += f"; {cache['missed_tokens']:,} missed: {parted['cause']} at {parted['place']}"
    if parted["now"]:
        line += f', "{parted["now"]}" where {cache["compared_with"]} had "{parted["before"]}"'
    return line
