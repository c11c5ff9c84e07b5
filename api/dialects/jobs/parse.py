"""Jobs (``/v1/jobs``) and agents (``/v1/agents``): bodies become requests, items become events."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from api.dialects.agent_hints import agent_of
from api.dialects.jobs.bodies import AgentBody, JobBody, OptionsBody, TurnBody
from api.dialects.openai_chat.parse import tools_of, turns_of
from api.dialects.turns import merge_turns
from api.http.bodies import parse_body
from api.http.sse import Comment, Frame, Part
from api.parsed_request import (
    ParsedRequest,
    RequestDefaults,
    clamp_max_tokens,
    sampling_of,
    stop_texts,
)
from domain.agent.state import AgentOptions, Profile
from domain.chat.items import Failed, StreamItem
from domain.chat.request import ChatRequest, Message
from domain.errors import InvalidRequest, SemanticError
from domain.log.codec import item_to_dict
from domain.values import AgentId, Priority


def messages_of(wire: JobBody | TurnBody) -> list[Message]:
    """Return the messages of a body, or its prompt as a user turn."""
    if wire.messages is None:
        return [Message(role="user", content=wire.prompt or "")]
    return list(turns_of(wire.messages))


def queued_request(
    chat: ChatRequest,
    wire: JobBody | TurnBody,
    *,
    agent: AgentId | None,
    stream: bool,
    names_model: bool,
) -> ParsedRequest:
    """Return a request with the priority, the deadlines and the webhook of a body.

    Args:
        chat: The generation.
        agent: The agent of the request, if it names one.
        stream: Whether the reply is a stream.
        names_model: Whether the body, or the profile of its agent, names a model.
    """
    return ParsedRequest(
        chat=chat,
        stream=stream,
        priority=Priority(wire.priority or Priority.INTERACTIVE),
        agent=agent,
        seeded=wire.seed is not None,
        start_within_s=wire.start_within_s,
        finish_within_s=wire.finish_within_s,
        webhook=wire.webhook,
        names_model=names_model,
    )


def parse(body: bytes, headers: Mapping[str, str], defaults: RequestDefaults) -> ParsedRequest:
    """Parse a body of ``POST /v1/jobs``.

    Args:
        body: The body of the request.
        headers: Headers by lower-case name.
        defaults: Values for open fields.

    Raises:
        InvalidRequest: The error names the first invalid field.
    """
    wire = parse_body(JobBody, body)
    chat = ChatRequest(
        model=wire.model or defaults.model,
        messages=merge_turns([wire.system or ""], messages_of(wire)),
        max_tokens=clamp_max_tokens(wire.max_tokens, defaults.max_tokens),
        sampling=sampling_of(wire, wire.seed, defaults.ids, min_p=wire.min_p),
        tools=tools_of(wire.tools),
        stop=stop_texts(wire.stop),
        thinking=bool(wire.thinking),
        thinking_limit=defaults.efforts.limit(None, forbidden=wire.thinking is False),
    )
    agent = agent_of(headers, named=wire.agent_id)
    return queued_request(chat, wire, agent=agent, stream=True, names_model=wire.model is not None)


def profile_of(wire: AgentBody) -> Profile:
    """Return the profile of a new agent."""
    return Profile(system=wire.system or "", tools=tools_of(wire.tools), options=_options_of(wire))


def parse_turn(
    wire: TurnBody,
    agent: AgentId,
    profile: Profile,
    before: Sequence[Message],
    defaults: RequestDefaults,
) -> ParsedRequest:
    """Return a turn of an agent as a request with the agent's history.

    Args:
        profile: The profile of the agent.
        before: The conversation before the turn; empty for the first turn.
        defaults: Values for fields that neither the turn nor the profile sets.

    Raises:
        InvalidRequest: The turn begins with an assistant message.
    """
    turns = messages_of(wire)
    if turns[0].role == "assistant":
        msg = "a turn begins with a message to the agent; the service stores the agent's answers"
        raise InvalidRequest(msg, field="messages")
    options = _options_of(wire).over(profile.options)
    history = [turn for turn in before if turn.role != "system"]
    chat = ChatRequest(
        model=options.model or defaults.model,
        messages=merge_turns([profile.system], [*history, *turns]),
        max_tokens=clamp_max_tokens(options.max_tokens, defaults.max_tokens),
        sampling=sampling_of(options, wire.seed, defaults.ids, min_p=options.min_p),
        tools=profile.tools,
        stop=options.stop or (),
        thinking=bool(options.thinking),
        thinking_limit=defaults.efforts.limit(None, forbidden=options.thinking is False),
    )
    return queued_request(
        chat,
        wire,
        agent=agent,
        stream=bool(wire.stream),
        names_model=options.model is not None,
    )


def _options_of(wire: OptionsBody) -> AgentOptions:
    return AgentOptions(
        model=wire.model,
        max_tokens=wire.max_tokens,
        temperature=wire.temperature,
        top_p=wire.top_p,
        top_k=wire.top_k,
        min_p=wire.min_p,
        stop=None if wire.stop is None else stop_texts(wire.stop),
        thinking=wire.thinking,
    )


#: ``{attempt}-{n}`` as in ``id:`` lines, or ``n`` alone, which counts as of the first attempt.
CURSOR_PATTERN: Final = r"^([0-9]{1,9}-)?[0-9]{1,9}$"
_CURSOR = re.compile(CURSOR_PATTERN)


@dataclass(frozen=True, slots=True)
class Cursor:
    """The last item that a client has: its number, -1 for none, and the attempt that emitted it."""

    n: int = -1
    attempt: int = 1


#: The cursor of a client that has no item.
NO_ITEM: Final = Cursor()


class NativeEncoder:
    """Encodes items unchanged; numbered ones carry ``id: {attempt}-{n}``, transient ones none."""

    def __init__(self) -> None:
        self._attempt = 1

    def open(self) -> list[Part]:
        """Return a comment, so that the headers and a first byte are sent at once."""
        return [Comment("open")]

    def item(self, item: StreamItem) -> list[Part]:
        """Return the event of an item."""
        self._attempt = item.attempt
        data = item_to_dict(item)
        name = None if item.n is None else f"{item.attempt}-{item.n}"
        return [Frame(id=name, event=data["kind"], data=data)]

    def ping(self) -> list[Part]:
        """Return a comment."""
        return [Comment("ping")]

    def fail(self, error: SemanticError) -> list[Part]:
        """Return a last event without a number: the stream ends, the job may go on."""
        body = Failed(error=error.code, message=error.message, retryable=error.retryable)
        return self.item(StreamItem(n=None, attempt=self._attempt, body=body))


def parse_cursor(text: str | None, *, field: str) -> Cursor:
    """Return the last item that a client has.

    Args:
        text: The cursor of the request, if it has one.
        field: Field of the request that the error names.

    Raises:
        InvalidRequest: The text is not a cursor.
    """
    if text is None:
        return NO_ITEM
    if not _CURSOR.fullmatch(text):
        msg = "a cursor is the id of an event of this stream, such as 1-17"
        raise InvalidRequest(msg, field=field)
    attempt, _, n = text.rpartition("-")
    return Cursor(int(n), max(1, int(attempt or 1)))
