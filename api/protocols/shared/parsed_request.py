"""What a wire request comes down to."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from api.schemas.base import MAX_TOKENS_CEILING, NAME_PATTERN, TOP_K_CEILING, WebhookBody
from domain.chat.request import ChatRequest
from domain.ports import IdSource
from domain.values import SEED_MAX, AgentId, Priority, SamplingWish

ThinkingShown = Literal["none", "omitted", "whole"]

#: How hard to think, as the vendors name it.
_EFFORTS: Final = frozenset({"none", "minimal", "low", "medium", "high", "xhigh", "max"})
_AGENT_ID = re.compile(NAME_PATTERN)
#: Headers that name a session, and what runs inside it: of Claude Code, of Codex, of older Codex,
#: of opencode, which says the same in both.
_SESSION_HEADERS: Final = (
    ("x-claude-code-session-id", "x-claude-code-agent-id"),
    ("session-id", "thread-id"),
    ("session_id", "conversation_id"),
    ("x-session-id", "x-session-affinity"),
)
#: A longer ``metadata.user_id`` is not looked into.
USER_ID_CHARS_MAX: Final = 4096
_OLD_USER_ID: Final = re.compile(r"user_\w*_account_[\w-]*?_session_([0-9a-f-]{36})")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedRequest:
    """A request in the domain's terms, and how its answer is wanted.

    Attributes:
        chat: What to generate, with the seed drawn.
        stream: Whether the answer comes piece by piece.
        include_usage: Whether an OpenAI stream ends with a chunk of token counts.
        priority: Which queue.
        agent: Who it is for, if the request says so.
        seeded: Whether the caller chose the seed.
        thinking: Whether reasoning is shown, only said to have been, or left out.
        has_cache_control: Whether it says what to keep, and is told what was.
        start_within_s: Seconds after which it must not start.
        finish_within_s: Seconds after which it must not run.
        webhook: Who is told of its end, as the caller wrote it.
        wire: The request in the words of its dialect, where the answer shows them again.
        more: What else to generate for the same request; each is a job of its own.
        answers_each: How many of ``chat`` and ``more`` in a row have one prompt.
    """

    chat: ChatRequest
    stream: bool = False
    include_usage: bool = False
    priority: Priority = Priority.INTERACTIVE
    agent: AgentId | None = None
    seeded: bool = False
    thinking: ThinkingShown = "none"
    has_cache_control: bool = False
    start_within_s: float | None = None
    finish_within_s: float | None = None
    webhook: WebhookBody | None = None
    wire: bytes | None = None
    more: tuple[ChatRequest, ...] = ()
    answers_each: int = 1

    @property
    def chats(self) -> tuple[ChatRequest, ...]:
        """All that is to be generated, in the order of the answers."""
        return (self.chat, *self.more)

    @property
    def is_repeatable(self) -> bool:
        """Whether the answer would be the same a second time."""
        return self.seeded or self.chat.sampling.temperature == 0


def clamp_max_tokens(wanted: int | None, default: int) -> int:
    """Return the caller's limit, lowered to the ceiling; a large one is never an error."""
    return min(wanted if wanted is not None else default, MAX_TOKENS_CEILING)


def sampling_of(
    *,
    temperature: float | None,
    top_p: float | None,
    top_k: int | None,
    seed: int | None,
    ids: IdSource,
    min_p: float | None = None,
) -> SamplingWish:
    """Return the sampling that was asked for, with a drawn seed if none was given.

    What is not asked for is left to the model's own defaults.

    A negative seed is folded onto ``[0, SEED_MAX]`` by dropping its sign bit.
    """
    return SamplingWish(
        temperature=temperature,
        top_p=top_p,
        top_k=None if top_k is None else min(top_k, TOP_K_CEILING),
        min_p=min_p,
        seed=ids.seed() if seed is None else seed & SEED_MAX,
    )


def effort_of(wanted: str | None) -> str | None:
    """Return the effort that is asked for, ``None`` for one that nobody knows."""
    return wanted if wanted in _EFFORTS else None


def repeat_for_answers(chat: ChatRequest, answers: int) -> tuple[ChatRequest, ...]:
    """Return a request as often as answers to it are wanted, each with a seed of its own.

    The seeds follow one another from the one that was asked for or drawn, so that the first answer
    is the one that a request for a single answer gets.
    """
    first = chat.sampling
    return tuple(
        replace(chat, sampling=replace(first, seed=(first.seed + number) & SEED_MAX))
        for number in range(answers)
    )


def stop_texts(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the distinct non-empty stop texts in order; an empty one could never be reached."""
    texts = [stop] if isinstance(stop, str) else stop or ()
    return tuple(dict.fromkeys(text for text in texts if text))


def agent_of(
    headers: Mapping[str, str],
    *,
    named: str | None = None,
    session: str | None = None,
    cache_key: str | None = None,
    user_id: str | None = None,
) -> AgentId | None:
    """Return who a request is for, by the first of these that says so.

    A request without a hint has no agent here; ``domain.chat.conversation_id`` names it later.
    Values that do not look like an id are ignored: these are hints, not input.

    Args:
        headers: By lower-case name; those of Claude Code and Codex name a session and a subagent.
        named: An agent's own id, which goes before all else.
        session: Our ``session_id`` of the body.
        cache_key: OpenAI's ``prompt_cache_key``: what is asked under one key begins alike.
        user_id: Anthropic's ``metadata.user_id``, in which Claude Code says its session too.
    """
    told = (_session_of(headers, *names) for names in _SESSION_HEADERS)
    for name in (named, *told, session, cache_key, _session_in(user_id)):
        if name and _AGENT_ID.match(name):
            return AgentId(name)
    return None


def _session_of(headers: Mapping[str, str], session: str, inside: str) -> str:
    """Return what two headers name together; Codex's main thread has the name of its session."""
    names = dict.fromkeys(headers[name] for name in (session, inside) if name in headers)
    return "/".join(names)


def _session_in(user_id: str | None) -> str | None:
    """Return the session that a ``user_id`` of Claude Code names; that of others names a user.

    It is JSON with a ``session_id``; older versions write ``user_…_account_…_session_<uuid>``.
    """
    if not user_id or len(user_id) > USER_ID_CHARS_MAX:
        return None
    found = _OLD_USER_ID.fullmatch(user_id)
    if found is not None:
        return found[1]
    try:
        told = json.loads(user_id)
    except (ValueError, RecursionError):
        return None
    session = told.get("session_id") if isinstance(told, dict) else None
    return session if isinstance(session, str) else None
