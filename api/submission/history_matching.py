"""Which earlier answers a conversation echoes, as far as this service can tell."""

from __future__ import annotations

from api.services import Services
from domain.chat.request import ChatRequest
from domain.usecases.history_matching import attribute
from domain.usecases.recorded_answers import LoggedAnswers
from domain.values import AgentId


def attributed(request: ChatRequest, agent: AgentId | None, services: Services) -> ChatRequest:
    """Return the request with the origins of its turns; blocks. See ``attribute``."""
    answers = LoggedAnswers(log=services.log, payloads=services.payloads)
    return attribute(request, agent, views=services.views, answers=answers)
