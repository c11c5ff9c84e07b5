"""Matches the turns of a request with answers that were generated here."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Final

from domain.chat.divergence import RecordedAnswer, is_echo
from domain.chat.ports import RecordedAnswers
from domain.chat.request import EDITED_ORIGIN, ChatRequest, canonical_json
from domain.job.listing import JobFilter, JobViews
from domain.job.state import Job
from domain.values import AgentId, JobId, Owner

#: Prefix of such an id.
CONTENT_PREFIX = "auto-"
#: Hex digits after it; a collision of two conversations costs tokens and changes no answer.
_DIGITS = 32


def content_id(request: ChatRequest) -> AgentId:
    """Return an id that all turns of a conversation share: a digest of its beginning.

    It is a function of the system prompt and the first text of the user. No event holds it:
    readers of the log could find equal conversations by it (ADR 0014).
    """
    opening = {
        role: next((turn.content for turn in request.messages if turn.role == role), "")
        for role in ("system", "user")
    }
    digest = hashlib.sha256(b"conversation\n" + canonical_json(opening)).hexdigest()
    return AgentId(CONTENT_PREFIX + digest[:_DIGITS])


#: Latest jobs of an agent whose answers are compared.
COMPARED_ANSWERS_MAX: Final = 16
#: Latest jobs among which those without an agent are searched.
SEARCHED_JOBS_MAX: Final = 64


def match_history(
    request: ChatRequest,
    agent: AgentId | None,
    *,
    views: JobViews,
    answers: RecordedAnswers,
    owner: Owner | None = None,
) -> ChatRequest:
    """Return the request with an origin at every turn that echoes a recent answer of the agent.

    Args:
        request: The request of the client; turns with an origin stay as they are.
        agent: Its agent, if the request names one.
        owner: Only answers to this API key count; origins of other jobs are dropped.
    """
    request = without_foreign_origins(request, owner, views)
    unknown = {
        number
        for number, turn in enumerate(request.messages[:-1])
        if turn.role == "assistant" and not turn.origin and not turn.tool_calls
    }
    if not unknown:
        return request
    recent = [found for view in _recent(agent, views, owner) if (found := answers.find(view.id))]
    messages = list(request.messages)
    # From the newest turn and answer back: equal texts are matched by their order.
    for number in sorted(unknown, reverse=True):
        match = next(
            (
                one
                for one in recent
                if is_echo(messages[number], one.answer)
                and (agent is not None or _begins_alike(request, one, answers))
            ),
            None,
        )
        if match is not None:
            recent.remove(match)
            messages[number] = replace(messages[number], origin=match.job_id)
    return replace(request, messages=tuple(messages))


def without_foreign_origins(
    request: ChatRequest, owner: Owner | None, views: JobViews
) -> ChatRequest:
    """Drop the origins that are no jobs of the owner: their tokens must not enter the prompt."""
    if owner is None or not any(turn.origin for turn in request.messages):
        return request
    messages = []
    for turn in request.messages:
        is_no_job = turn.origin in ("", EDITED_ORIGIN)
        view = None if is_no_job else views.get(JobId(turn.origin))
        is_own = view is not None and view.submitted.owner == owner
        messages.append(turn if is_own or is_no_job else replace(turn, origin=""))
    return replace(request, messages=tuple(messages))


def _recent(agent: AgentId | None, views: JobViews, owner: Owner | None) -> tuple[Job, ...]:
    if agent is not None:
        return views.page(JobFilter(agent=agent, owner=owner), limit=COMPARED_ANSWERS_MAX).jobs
    page = views.page(JobFilter(owner=owner), limit=SEARCHED_JOBS_MAX)
    nameless = [one for one in page.jobs if one.submitted.agent is None]
    return tuple(nameless[:COMPARED_ANSWERS_MAX])


def _begins_alike(request: ChatRequest, answer: RecordedAnswer, answers: RecordedAnswers) -> bool:
    before = answers.request(answer.request)
    return before is not None and content_id(before) == content_id(request)
