"""What a job found in the cache, as clients see it: a header, and a part of the job."""

from __future__ import annotations

import re
from typing import Final

from api.schemas.replies import JobCache, JobDivergence
from api.services import Services
from domain.chat.divergence import PromptDivergence
from domain.usecases.cache_diagnostics import CacheDiagnosis, explain
from domain.values import JobId

#: On every answer to a generation whose prompt is known when its head goes out.
CACHE_HEADER: Final = "x-semantic-cache"
#: What may not stand in a string of RFC 8941.
_UNFIT: Final = re.compile(r"[^ -~]+")


def cache_story(job_id: JobId, services: Services) -> CacheDiagnosis | None:
    """Return what a job found; blocks."""
    return explain(job_id, views=services.views, log=services.log, payloads=services.payloads)


def cache_object(job_id: JobId, services: Services) -> JobCache | None:
    """Return what a job found as a part of it; blocks."""
    story = cache_story(job_id, services)
    if story is None:
        return None
    return {
        "prompt_tokens": story.prompt_tokens,
        "cached_tokens": story.cached_tokens,
        "source": story.source,
        "missed_tokens": story.missed_tokens,
        "compared_with": story.compared_with,
        "divergence": None if story.divergence is None else _divergence(story, story.divergence),
    }


def _divergence(story: CacheDiagnosis, parted: PromptDivergence) -> JobDivergence:
    return {
        "at_token": story.cached_tokens,
        "cause": parted.cause.value,
        "place": parted.place,
        "before": parted.before,
        "now": parted.now,
    }


def cache_header(story: CacheDiagnosis) -> str:
    """Return the header's value, a dictionary of RFC 8941."""
    members = [
        f"prompt={story.prompt_tokens}",
        f"cached={story.cached_tokens}",
        f"source={story.source}",
    ]
    if story.divergence is not None:
        parted = story.divergence
        members += [
            f"missed={story.missed_tokens}",
            f"cause={parted.cause.value}",
            f"place={_string(parted.place)}",
        ]
        members += [
            f"{name}={_string(text)}"
            for name, text in (("before", parted.before), ("now", parted.now))
            if text
        ]
    return ", ".join(members)


def _string(text: str) -> str:
    fit = _UNFIT.sub("?", text).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{fit}"'
