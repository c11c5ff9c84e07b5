"""Ids of calls, items and signatures, which carry the job that produced them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from domain.values import JobId

#: Ids of calls (``toolu_<job>_<n>``) and of items (``msg_<job>_<n>``, ``rs_…``, ``fc_…``,
#: ``ctc_…``, ``tsc_…``), and signatures of reasoning (``s1.<job>-<n>.…``).
_ANSWER_ID: Final = re.compile(r"(?:(?:toolu|msg|rs|fc|ctc|tsc)_|s1\.)([0-9a-f]{32})[_-]\d")


def origin_of(ids: Iterable[str | None]) -> str:
    """Return the job that the ids name; "" if they name none or several."""
    jobs = {found[1] for one in ids if one and (found := _ANSWER_ID.match(one))}
    return f"job-{jobs.pop()}" if len(jobs) == 1 else ""


def job_hex(job_id: JobId) -> str:
    """Return the hexadecimal part of a job id, which the ids of its answer carry."""
    return job_id.removeprefix("job-")
