"""Compaction in Responses: the item that refers to a summary in the log, and what it replaces.

The item that the client gets and sends back names the job of the summary and carries its digest.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from api.dialects.openai_responses.requested import Item, RequestedFields
from api.generation import job_hex
from domain.errors import InvalidRequest
from domain.values import JobId

TRIGGER: Final = "compaction_trigger"
ITEM: Final = "compaction"
_REFERENCE: Final = re.compile(r"c1\.([0-9a-f]{32})\.([0-9a-f]{32})")
#: Member of a compaction that has been read from the log; no reply has it.
SUMMARY: Final = "summary"
#: Roles of messages that a compaction does not take out.
_LASTING: Final = frozenset({"system", "developer"})

#: Returns the stored fields of a compaction and its summary; ``None`` where the caller has none.
ReadSummary = Callable[[JobId], tuple[RequestedFields, str] | None]


def compaction_item(job_id: JobId, summary: str) -> dict[str, Any]:
    """Return the item of a compaction; without a summary, as it stands while one is written."""
    content = f"c1.{job_hex(job_id)}.{_digest(summary)}" if summary else ""
    return {"id": f"cmp_{job_hex(job_id)}", "type": ITEM, "encrypted_content": content}


def compacting(requested: RequestedFields, *, kept: int | None = None) -> RequestedFields:
    """Return the fields of the job that compacts the conversation of a request.

    Args:
        kept: As in ``RequestedFields``.
    """
    return replace(requested, is_compaction=True, kept=kept, is_stored=False, is_background=False)


def newest_question(items: Sequence[Item]) -> int:
    """Return how many of the last items stay in words: the messages of the user at the end."""
    kept = 0
    while kept < len(items) and items[-1 - kept].get("role") in ("user", *_LASTING):
        kept += 1
    return kept


def shown_items(items: Sequence[Item], read: ReadSummary, before: int) -> list[Item]:
    """Return what the model sees of a conversation: summaries in the place of what they cover.

    The summary of ``POST /v1/responses/compact`` stands behind the items that the client keeps.
    That of a trigger and an automatic one take the place of everything before them, except
    instructions and the newest question.

    Args:
        before: How many of the items are not of the request, for the place of an error.

    Raises:
        InvalidRequest: An item refers to no compaction of the caller.
    """
    shown: list[Item] = []
    for index, item in enumerate(items):
        if item["type"] == TRIGGER and index < len(items) - 1:
            continue  # its compaction follows it
        if item["type"] != ITEM:
            shown.append(item)
            continue
        found = _read(item, read, f"input.{max(0, index - before)}.encrypted_content")
        of_trigger = index > 0 and items[index - 1]["type"] == TRIGGER
        kept = found[0].kept
        if kept is not None or of_trigger:
            shown = _behind(shown, kept or 0)
            shown.insert(_instructions(shown), {**item, SUMMARY: found[1]})
        else:
            shown.append({**item, SUMMARY: found[1]})
    return shown


def _behind(shown: Sequence[Item], kept: int) -> list[Item]:
    cut = len(shown) - kept
    return [item for item in shown[:cut] if _lasts(item)] + list(shown[cut:])


def _instructions(shown: Iterable[Item]) -> int:
    count = 0
    for item in shown:
        if not _lasts(item):
            break
        count += 1
    return count


def _lasts(item: Item) -> bool:
    return item.get("role") in _LASTING


def _read(item: Item, read: ReadSummary, field: str) -> tuple[RequestedFields, str]:
    named = _REFERENCE.fullmatch(item["encrypted_content"])
    found = read(JobId(f"job-{named[1]}")) if named is not None else None
    if named is None or found is None or _digest(found[1]) != named[2]:
        msg = "the service has no such compaction; send the items that it stands for"
        raise InvalidRequest(msg, field=field)
    return found


def _digest(summary: str) -> str:
    return hashlib.sha256(summary.encode("utf-8", "replace")).hexdigest()[:32]
