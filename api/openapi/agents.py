"""What the routes of agents take and give."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from api.http.request_headers import KEY_CHARS_MAX, KEY_PATTERN
from api.openapi.operations import Operation
from api.openapi.parameters import limit, path, query
from api.schemas.agents import (
    AGENT_ID_PATTERN,
    AgentBody,
    AgentCache,
    AgentList,
    AgentObject,
    DeletedAgent,
    ForkBody,
    TurnBody,
)
from api.schemas.replies import JobObject

_NAME: Final = {"type": "string", "pattern": AGENT_ID_PATTERN}
_AGENT: Final = path("agent_id", _NAME, "writer")
_TAKEN: Final = "The name belongs to an agent that was made of something else"
#: By method and pattern.
AGENT_OPERATIONS: Final[Mapping[tuple[str, str], Operation]] = {
    ("POST", "/v1/agents"): Operation(
        id="createAgent",
        summary="Make an agent that keeps its own history",
        status=201,
        body=AgentBody,
        body_required=False,
        example={"id": "writer", "system": "You write short letters.", "max_tokens": 32},
        reply=AgentObject,
        extra={409: _TAKEN},
        ended=True,
    ),
    ("GET", "/v1/agents"): Operation(
        id="listAgents",
        summary="List the agents that were made here, the latest first",
        reply=AgentList,
        parameters=(
            limit(20, 100),
            query("before", _NAME, "only agents made before this one"),
        ),
    ),
    ("GET", "/v1/agents/{agent_id}"): Operation(
        id="getAgent",
        summary="Show an agent with its latest turns",
        reply=AgentObject,
        missing=True,
        parameters=(_AGENT,),
    ),
    ("DELETE", "/v1/agents/{agent_id}"): Operation(
        id="deleteAgent",
        summary="Show an agent no more, and cancel its open turn",
        reply=DeletedAgent,
        missing=True,
        parameters=(_AGENT,),
    ),
    ("POST", "/v1/agents/{agent_id}/generate"): Operation(
        id="generateTurn",
        summary="Add a turn to an agent's history",
        status=202,
        body=TurnBody,
        example={"prompt": "Say hello.", "max_tokens": 32},
        reply=JobObject,
        streams=True,
        missing=True,
        links=True,
        parameters=(
            _AGENT,
            {
                "name": "Idempotency-Key",
                "in": "header",
                "schema": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": KEY_CHARS_MAX,
                    "pattern": KEY_PATTERN,
                },
                "description": "requests of one key are one turn",
            },
            {
                "name": "Prefer",
                "in": "header",
                "schema": {"type": "string", "example": "wait=30"},
                "description": "wait=n holds the answer back until the turn has ended",
            },
        ),
        extra={
            409: "A turn is open, or the agent has another number of turns: turn says how many",
            429: "Too many jobs are waiting; Retry-After says when to try again",
        },
        ended=True,
    ),
    ("GET", "/v1/agents/{agent_id}/cache"): Operation(
        id="getAgentCache",
        summary="Show what is known of an agent's context",
        reply=AgentCache,
        missing=True,
        parameters=(_AGENT,),
    ),
    ("POST", "/v1/agents/{agent_id}/fork"): Operation(
        id="forkAgent",
        summary="Make an agent that begins where this one was after one of its turns",
        status=201,
        body=ForkBody,
        body_required=False,
        example={"from_turn": 0},
        reply=AgentObject,
        missing=True,
        parameters=(_AGENT,),
        extra={409: "The name is taken"},
    ),
}
