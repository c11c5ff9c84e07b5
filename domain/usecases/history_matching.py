"""Find out which answers the turns of a conversation echo, where no id in them says so.

A turn of text alone comes back without any id of ours. It is looked for among the latest answers
of the same agent, or, where nobody is named, of conversations that began in the same way. What is
found becomes a part of the request, so that every attempt at it, and a replay of it in a year,
reads the same prompt.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from domain.chat.conversation_id import content_id
from domain.chat.echo import RecordedAnswer, is_echo
from domain.chat.ports import RecordedAnswers
from domain.chat.request import ChatRequest, Message
from domain.job.listing import JobViews
from domain.job.view import JobView
from domain.values import AgentId

#: How many of an agent's latest jobs are looked at.
LOOKED_AT_MAX: Final = 16
#: Among how many jobs of everybody those are looked for that name nobody.
NAMELESS_AMONG_MAX: Final = 64


def attribute(
    request: ChatRequest, agent: AgentId | None, *, views: JobViews, answers: RecordedAnswers
) -> ChatRequest:
    """Return the request with an origin at every turn that is one of the agent's late answers.

    Args:
        request: As the client sent it; turns whose ids say where they come from are left alone.
        agent: Whose conversation it is, if the request says so.
        views: The jobs.
        answers: What they said.
    """
    unknown = {
        number
        for number, turn in enumerate(request.messages[:-1])
        if turn.role == "assistant" and not turn.origin and not turn.tool_calls
    }
    if not unknown:
        return request
    late = [said for view in _late(agent, views) if (said := answers.find(view.id)) is not None]
    messages = list(request.messages)
    # The newest turn is the newest answer: a text that was said twice is told apart by its place.
    for number in sorted(unknown, reverse=True):
        said = next(
            (
                one
                for one in late
                if is_echo(messages[number], one.answer)
                and (agent is not None or _begins_alike(request, one, answers))
            ),
            None,
        )
        if said is not None:
            late.remove(said)
            messages[number] = _from(messages[number], said)
    return replace(request, messages=tuple(messages))


def _late(agent: AgentId | None, views: JobViews) -> tuple[JobView, ...]:
    if agent is not None:
        return views.page(limit=LOOKED_AT_MAX, agent=agent).jobs
    nameless = [one for one in views.page(limit=NAMELESS_AMONG_MAX).jobs if one.agent is None]
    return tuple(nameless[:LOOKED_AT_MAX])


def _begins_alike(request: ChatRequest, said: RecordedAnswer, answers: RecordedAnswers) -> bool:
    before = answers.request(said.request)
    return before is not None and content_id(before) == content_id(request)


def _from(turn: Message, said: RecordedAnswer) -> Message:
    return replace(turn, origin=said.job_id)
