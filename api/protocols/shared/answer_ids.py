"""Which answer an assistant turn echoes, as its ids say."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from domain.values import JobId

#: Ids of our calls (``toolu_<job>_<n>``) and items (``msg_<job>_<n>``, ``rs_…``, ``fc_…``,
#: ``ctc_…``, ``tsc_…``), and signatures of our reasoning (``s1.<job>-<n>.…``).
_OURS: Final = re.compile(r"(?:(?:toolu|msg|rs|fc|ctc|tsc)_|s1\.)([0-9a-f]{32})[_-]\d")


def origin_of(ids: Iterable[str | None]) -> str:
    """Return the job that all of our ids among ``ids`` name, "" if there is none or they differ."""
    jobs = {found[1] for one in ids if one and (found := _OURS.match(one))}
    return f"job-{jobs.pop()}" if len(jobs) == 1 else ""


def job_hex(job_id: JobId) -> str:
    """Return the part of a job id that the ids of its answers carry."""
    return job_id.removeprefix("job-")
