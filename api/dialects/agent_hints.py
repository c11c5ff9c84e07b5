"""The agent that a request belongs to, as its headers and fields name it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final

from api.http.bodies import NAME_PATTERN
from domain.values import AgentId

#: Longest ``metadata.user_id`` that is searched for a session, in characters.
USER_ID_CHARS_MAX: Final = 4096

_AGENT_ID = re.compile(NAME_PATTERN)
#: Headers that name a session and a thread or subagent in it: Claude Code, Codex, older Codex,
#: and opencode, which sends the same value in both.
_SESSION_HEADERS: Final = (
    ("x-claude-code-session-id", "x-claude-code-agent-id"),
    ("session-id", "thread-id"),
    ("session_id", "conversation_id"),
    ("x-session-id", "x-session-affinity"),
)
_OLD_USER_ID: Final = re.compile(r"user_\w*_account_[\w-]*?_session_([0-9a-f-]{36})")


def agent_of(
    headers: Mapping[str, str],
    *,
    named: str | None = None,
    session: str | None = None,
    cache_key: str | None = None,
    user_id: str | None = None,
) -> AgentId | None:
    """Return the agent of a request: the first valid id among these.

    For a request without a valid id, ``domain.usecases.history_matching`` derives the agent later.
    Values that are not valid ids are ignored and never refused.

    Args:
        headers: Headers by lower-case name; Claude Code and Codex name a session and a subagent.
        named: The explicit id of the agent, which takes precedence.
        session: ``session_id`` of the body, an extension of this service.
        cache_key: OpenAI's ``prompt_cache_key``: requests with the same key share a prefix.
        user_id: Anthropic's ``metadata.user_id``, in which Claude Code also sends its session.
    """
    sessions = (_session_of(headers, *names) for names in _SESSION_HEADERS)
    for name in (named, *sessions, session, cache_key, _session_in(user_id)):
        if name and _AGENT_ID.fullmatch(name):
            return AgentId(name)
    return None


def _session_of(headers: Mapping[str, str], session: str, thread: str) -> str:
    """Return the joined values of two headers; equal values, as of Codex's main thread, once."""
    names = dict.fromkeys(headers[name] for name in (session, thread) if name in headers)
    return "/".join(names)


def _session_in(user_id: str | None) -> str | None:
    """Return the session in a ``user_id`` of Claude Code; other clients send the id of a user.

    Claude Code sends JSON with a ``session_id``; older versions send
    ``user_…_account_…_session_<uuid>``.
    """
    if not user_id or len(user_id) > USER_ID_CHARS_MAX:
        return None
    found = _OLD_USER_ID.fullmatch(user_id)
    if found is not None:
        return found[1]
    try:
        value = json.loads(user_id)
    except (ValueError, RecursionError):
        return None
    session = value.get("session_id") if isinstance(value, dict) else None
    return session if isinstance(session, str) else None
