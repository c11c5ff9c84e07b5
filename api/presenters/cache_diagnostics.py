"""Cache diagnoses of jobs as clients read them: a header, and a part of the job."""

from __future__ import annotations

import re
from typing import Final

from api.schemas.replies import JobCache, JobDivergence
from domain.chat.divergence import PromptDivergence
from domain.usecases.cache_diagnostics import CacheDiagnosis

#: On every reply to a generation whose prompt is known when the headers are sent.
CACHE_HEADER: Final = "x-semantic-cache"
#: Characters that a string of RFC 8941 cannot have.
_UNPRINTABLE: Final = re.compile(r"[^ -~]+")


def cache_object(diagnosis: CacheDiagnosis) -> JobCache:
    """Return the cache part of a job object."""
    divergence = diagnosis.divergence
    return {
        "prompt_tokens": diagnosis.prompt_tokens,
        "cached_tokens": diagnosis.cached_tokens,
        "source": diagnosis.source,
        "known_tokens": diagnosis.known_tokens,
        "missed_tokens": diagnosis.missed_tokens,
        "compared_with": diagnosis.compared_with,
        "divergence": None if divergence is None else _divergence(diagnosis, divergence),
    }


def _divergence(diagnosis: CacheDiagnosis, divergence: PromptDivergence) -> JobDivergence:
    return {
        "at_token": diagnosis.cached_tokens,
        "cause": divergence.cause.value,
        "place": divergence.place,
        "before": divergence.before,
        "now": divergence.now,
    }


def cache_header(diagnosis: CacheDiagnosis) -> str:
    """Return the value of the header, a dictionary of RFC 8941 without any text of a prompt."""
    members = [
        f"prompt={diagnosis.prompt_tokens}",
        f"cached={diagnosis.cached_tokens}",
        f"source={diagnosis.source}",
    ]
    if diagnosis.known_tokens > diagnosis.cached_tokens:
        # Windows and states go on from a checkpoint; 0 is the beginning of the prompt.
        members += [f"known={diagnosis.known_tokens}", f"checkpoint={diagnosis.cached_tokens}"]
    if diagnosis.divergence is not None:
        divergence = diagnosis.divergence
        members += [
            f"missed={diagnosis.missed_tokens}",
            f"cause={divergence.cause.value}",
            f"place={_string(_without_names(divergence.place))}",
        ]
    return ", ".join(members)


def _without_names(place: str) -> str:
    """Return a place without the name of a tool, which is text of the client."""
    return place.partition(" ")[0] if place.startswith("tools[") else place


def _string(text: str) -> str:
    printable = _UNPRINTABLE.sub("?", text).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{printable}"'
