"""The id of a conversation is a digest of its beginning."""

from __future__ import annotations

import hashlib

import pytest

from domain.chat.request import ChatRequest, Message, Role
from domain.job.history_matching import content_id
from domain.values import AgentId, SamplingWish


def _id(*messages: tuple[Role, str], model: str = "m", max_tokens: int = 1) -> AgentId:
    request = ChatRequest(
        model=model,
        messages=tuple(Message(role=role, content=content) for role, content in messages),
        max_tokens=max_tokens,
        sampling=SamplingWish(),
    )
    return content_id(request)


@pytest.mark.parametrize(
    ("messages", "opening"),
    [
        ([("system", "Sei höflich."), ("user", "Hallo?")], '"Sei höflich.","user":"Hallo?"'),
        ([("user", "Hello?")], '"","user":"Hello?"'),
        ([("system", "Be kind.")], '"Be kind.","user":""'),
        ([], '"","user":""'),
    ],
)
def test_the_id_of_a_conversation_never_changes(
    messages: list[tuple[Role, str]], opening: str
) -> None:
    hashed = f'conversation\n{{"system":{opening}}}'.encode()
    assert _id(*messages) == "auto-" + hashlib.sha256(hashed).hexdigest()[:32]


def test_later_turns_and_options_do_not_change_it() -> None:
    beginning: list[tuple[Role, str]] = [("system", "Be kind."), ("user", "Hello?")]
    first = _id(*beginning)
    assert _id(*beginning, ("assistant", "Hi."), ("user", "Now?"), ("system", "Be brief.")) == first
    assert _id(*beginning, model="other", max_tokens=9) == first


def test_what_the_model_says_first_does_not_change_it() -> None:
    assert _id(("assistant", "Welcome."), ("user", "Hello?")) == _id(("user", "Hello?"))


def test_the_same_text_of_another_role_is_another_conversation() -> None:
    assert len({_id(("system", "a")), _id(("user", "a")), _id(("system", "a"), ("user", "a"))}) == 3
