"""Which earlier answers a conversation echoes, as far as this service can tell."""

from __future__ import annotations

from api.services import Services
from domain.chat import ChatRequest
from domain.usecases.answers import LoggedAnswers
from domain.usecases.attribute import attribute
from domain.values import AgentId


def attributed(request: ChatRequest, agent: AgentId | None, services: Services) -> ChatRequest:
    """Return the request with the origins of its turns; blocks. See ``attribute``."""
    answers = LoggedAnswers(log=services.log, payloads=services.payloads)
    return attribute(request, agent, views=services.views, answers=answers)
