"""Names of session agents: no client can write one, and no two sessions share one."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from api.access.ownership import session_agent
from api.dialects.agents.bodies import AGENT_ID_PATTERN
from api.http.bodies import KNOWN_NAME_PATTERN, NAME_PATTERN
from api.http.messages import Caller
from domain.values import AgentId
from ops.settings.api_keys import KeyScope

KEY_NAMES = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}", fullmatch=True)
SESSIONS = st.from_regex(NAME_PATTERN.rstrip("$"), fullmatch=True) | st.sampled_from(
    ["a" * 256, "a" * 255 + "b", "nightly", "nightly/1"]
)


def agent(session: str, key: str) -> str:
    return session_agent(Caller(name=key, scope=KeyScope.OWN, is_alone=False), AgentId(session))


@given(SESSIONS, KEY_NAMES)
def test_no_client_can_write_the_name_of_a_session(session: str, key: str) -> None:
    name = agent(session, key)
    assert re.fullmatch(KNOWN_NAME_PATTERN, name), "it can be looked up"
    assert not re.fullmatch(NAME_PATTERN, name)
    assert not re.fullmatch(AGENT_ID_PATTERN, name)


@given(st.lists(st.tuples(SESSIONS, KEY_NAMES), unique=True, min_size=2, max_size=2))
def test_two_sessions_share_no_name(pairs: list[tuple[str, str]]) -> None:
    one, other = pairs
    assert agent(*one) != agent(*other)
