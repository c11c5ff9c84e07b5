"""Find out which answers the turns of a conversation echo, where no id in them says so.

A turn of text alone comes back without any id of ours. It is looked for among the latest answers
of the same agent. What is found becomes a part of the request, so that every attempt at it, and a
replay of it in a year, reads the same prompt.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from domain.chat import ChatRequest, Message
from domain.echo import SpokenAnswer, is_echo
from domain.listing import JobViews
from domain.ports import SpokenAnswers
from domain.values import AgentId

#: How many of an agent's latest jobs are looked at.
LOOKED_AT_MAX: Final = 16


def attribute(
    request: ChatRequest, agent: AgentId | None, *, views: JobViews, answers: SpokenAnswers
) -> ChatRequest:
    """Return the request with an origin at every turn that is one of the agent's late answers.

    Args:
        request: As the client sent it; turns whose ids say where they come from are left alone.
        agent: Whose conversation it is. Without one there is nothing to look among.
        views: The jobs.
        answers: What they said.
    """
    unknown = {
        number
        for number, turn in enumerate(request.messages[:-1])
        if turn.role == "assistant" and not turn.origin and not turn.tool_calls
    }
    if agent is None or not unknown:
        return request
    late = [
        said
        for view in views.page(limit=LOOKED_AT_MAX, agent=agent).jobs
        if (said := answers.find(view.id)) is not None
    ]
    messages = list(request.messages)
    # The newest turn is the newest answer: a text that was said twice is told apart by its place.
    for number in sorted(unknown, reverse=True):
        said = next((one for one in late if is_echo(messages[number], one)), None)
        if said is not None:
            late.remove(said)
            messages[number] = _from(messages[number], said)
    return replace(request, messages=tuple(messages))


def _from(turn: Message, said: SpokenAnswer) -> Message:
    return replace(turn, origin=said.job_id)
