"""The agent of a request by its hints, and the derived id of a conversation without any."""

from __future__ import annotations

import json
from typing import Any

import pytest

from api.dialects.anthropic import parse as anthropic
from api.dialects.openai_chat import parse as openai_chat
from api.dialects.parsing import USER_ID_CHARS_MAX, agent_of
from api.generation import RequestDefaults
from domain.chat.request import ChatRequest, Message
from domain.job.history_matching import content_id
from domain.values import SamplingWish
from tests.support.fakes.time import SequentialIds

SESSION = "7e0c5a52-0000-4000-8000-000000000000"
HEADERS = {"x-claude-code-session-id": SESSION}
USER_ID = json.dumps({"device_id": "x", "account_uuid": "", "session_id": "from-metadata"})
OLD_USER_ID = f"user_0123abcd_account_{SESSION}_session_{SESSION[::-1].replace('e', 'a')}"


def test_an_id_of_the_agent_s_own_goes_before_all_else() -> None:
    found = agent_of(HEADERS, named="mine", session="s", user_id=USER_ID)
    assert found == "mine"


def test_headers_of_the_session_come_next() -> None:
    assert agent_of(HEADERS, session="s", user_id=USER_ID) == SESSION
    sub = HEADERS | {"x-claude-code-agent-id": "explore"}
    assert agent_of(sub, session="s", user_id=USER_ID) == f"{SESSION}/explore"


def test_codex_names_its_session_and_a_thread_beside_it() -> None:
    main = {"session-id": SESSION, "thread-id": SESSION}
    assert agent_of(main, session="s", cache_key="k") == SESSION
    assert agent_of(main | {"thread-id": "sub"}) == f"{SESSION}/sub"
    assert agent_of({"session_id": SESSION, "conversation_id": "c"}) == f"{SESSION}/c"
    assert agent_of({"x-session-id": "ses_1", "x-session-affinity": "ses_1"}) == "ses_1"
    assert agent_of(main | HEADERS | {"x-claude-code-agent-id": "explore"}) == f"{SESSION}/explore"


def test_then_a_session_of_the_body() -> None:
    assert agent_of({}, session="s", cache_key="k", user_id=USER_ID) == "s"


def test_then_the_key_under_which_prompts_begin_alike() -> None:
    assert agent_of({}, cache_key="k", user_id=USER_ID) == "k"
    assert agent_of({}, cache_key="any words at all") is None


@pytest.mark.parametrize(
    ("user_id", "found"),
    [
        (USER_ID, "from-metadata"),
        (OLD_USER_ID, OLD_USER_ID[-36:]),
        ("user_0123abcd_account__session_" + SESSION, SESSION),
        ("somebody@example.org", None),  # a user has many conversations
        ('{"session_id": 5}', None),
        ('{"session_id": "no spaces"}', None),
        ("[]", None),
        ("[" * 3000, None),
        ("{", None),
        (json.dumps({"session_id": "a", "x": "y" * USER_ID_CHARS_MAX}), None),
        ("", None),
    ],
)
def test_then_the_session_that_the_metadata_names(user_id: str, found: str | None) -> None:
    assert agent_of({}, user_id=user_id) == found


def test_what_is_no_id_is_left_aside() -> None:
    assert agent_of({"x-claude-code-session-id": "no spaces"}, session="s") == "s"
    assert agent_of({}) is None


def test_both_vendors_requests_are_read_for_it() -> None:
    body: Any = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
    raw = json.dumps(body | {"metadata": {"user_id": USER_ID}}).encode()
    ids = SequentialIds()
    assert anthropic.parse(raw, {}, RequestDefaults(ids=ids, max_tokens=1)).agent == "from-metadata"
    assert anthropic.parse(raw, HEADERS, RequestDefaults(ids=ids, max_tokens=1)).agent == SESSION
    raw = json.dumps(body | {"session_id": "s"}).encode()
    parsed = openai_chat.parse(raw, {}, RequestDefaults(ids=ids, max_tokens=1))
    assert parsed.agent == "s"
    raw = json.dumps(body | {"prompt_cache_key": "k", "user": "u"}).encode()
    assert openai_chat.parse(raw, {}, RequestDefaults(ids=ids, max_tokens=1)).agent == "k"


def _conversation(*texts: str, system: str = "Be kind.") -> ChatRequest:
    roles: Any = ("user", "assistant")
    turns = [Message(role=roles[n % 2], content=text) for n, text in enumerate(texts)]
    messages = (Message(role="system", content=system), *turns)
    return ChatRequest(model="m", messages=messages, max_tokens=1, sampling=SamplingWish())


def test_all_turns_of_a_conversation_have_one_name_and_others_have_another() -> None:
    first = content_id(_conversation("Hello?"))
    assert first.startswith("auto-")
    assert content_id(_conversation("Hello?", "Hi.", "And now?")) == first
    assert content_id(_conversation("Hello!")) != first
    assert content_id(_conversation("Hello?", system="")) != first
