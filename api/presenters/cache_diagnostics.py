"""What a job found in the cache, as clients see it: a header, and a part of the job."""

from __future__ import annotations

import re
from typing import Final

from api.schemas.replies import JobCache, JobDivergence
from domain.chat.divergence import PromptDivergence
from domain.usecases.cache_diagnostics import CacheDiagnosis

#: On every answer to a generation whose prompt is known when its head goes out.
CACHE_HEADER: Final = "x-semantic-cache"
#: What may not stand in a string of RFC 8941.
_UNFIT: Final = re.compile(r"[^ -~]+")


def cache_object(diagnosis: CacheDiagnosis) -> JobCache:
    """Return the cache part of a job object."""
    parted = diagnosis.divergence
    return {
        "prompt_tokens": diagnosis.prompt_tokens,
        "cached_tokens": diagnosis.cached_tokens,
        "source": diagnosis.source,
        "missed_tokens": diagnosis.missed_tokens,
        "compared_with": diagnosis.compared_with,
        "divergence": None if parted is None else _divergence(diagnosis, parted),
    }


def _divergence(diagnosis: CacheDiagnosis, parted: PromptDivergence) -> JobDivergence:
    return {
        "at_token": diagnosis.cached_tokens,
        "cause": parted.cause.value,
        "place": parted.place,
        "before": parted.before,
        "now": parted.now,
    }


def cache_header(diagnosis: CacheDiagnosis) -> str:
    """Return the header's value, a dictionary of RFC 8941."""
    members = [
        f"prompt={diagnosis.prompt_tokens}",
        f"cached={diagnosis.cached_tokens}",
        f"source={diagnosis.source}",
    ]
    if diagnosis.divergence is not None:
        parted = diagnosis.divergence
        members += [
            f"missed={diagnosis.missed_tokens}",
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
