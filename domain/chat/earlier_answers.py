"""Answers of earlier jobs in the prompt of a later one. Pure.

``{{after.NAME.text}}`` in a message stands for the text of the answer of the job of that name.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final

from domain.chat.request import ChatRequest, Message
from domain.errors import InvalidRequest

_PLACE: Final = re.compile(r"\{\{\s*after\.([^{}]*?)\s*\}\}")
_TEXT: Final = ".text"


def require_known(request: ChatRequest, names: Collection[str]) -> None:
    """Refuse a request that names what no earlier job will give.

    Raises:
        InvalidRequest: Naming the place.
    """
    for message in request.messages:
        for place in _PLACE.finditer(message.content):
            if not place[1].endswith(_TEXT) or place[1].removesuffix(_TEXT) not in names:
                known = ", ".join(f"{{{{after.{name}{_TEXT}}}}}" for name in names)
                msg = f"{place[0]} stands for no answer; there is {known}"
                raise InvalidRequest(msg, field="prompt")


def with_answers(request: ChatRequest, answers: Mapping[str, str]) -> ChatRequest:
    """Return a request with answers in their places; places in answers stay as they are."""

    def filled(message: Message) -> Message:
        content = _PLACE.sub(
            lambda place: answers.get(place[1].removesuffix(_TEXT), place[0]), message.content
        )
        return message if content == message.content else replace(message, content=content)

    return replace(request, messages=tuple(map(filled, request.messages)))
