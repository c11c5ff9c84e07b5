"""``/v1/agents/{agent_id}/cache`` and ``…/blocks``: the cached contexts of an agent."""

from __future__ import annotations

from typing import Final

from api.app import App
from api.http.messages import Reply, Request
from api.http.operation import Operation
from api.http.parameters import path
from api.http.replies import json_reply
from api.presenters.agents import contexts_object
from api.schemas.agents import KNOWN_AGENT_PATTERN, AgentCache, AgentContextMaps, ForgottenCache
from domain.values import AgentId

_AGENT_ID: Final = path("agent_id", pattern=KNOWN_AGENT_PATTERN, example="writer")


async def get_cache(app: App, request: Request) -> Reply:
    """Return the cache state of an agent's context, also of an agent that was never registered."""
    return json_reply(await app.call(app.agent_reader.load_cache, _agent_id(request)))


async def forget_cache(app: App, request: Request) -> Reply:
    """Delete the blocks that only this agent's contexts use."""
    agent_id = _agent_id(request)
    await app.call(app.agent_reader.is_registered, agent_id)
    blocks = await app.call(app.agent_contexts.forget, agent_id, correlation_id=request.id)
    body: ForgottenCache = {
        "object": "agent.cache",
        "agent_id": agent_id,
        "deleted": blocks > 0,
        "blocks": blocks,
    }
    return json_reply(body)


async def get_blocks(app: App, request: Request) -> Reply:
    """Return the contexts of an agent as maps of blocks."""
    agent_id = _agent_id(request)
    registered = await app.call(app.agent_reader.is_registered, agent_id)
    contexts = await app.call(app.agent_contexts.read, agent_id, request.caller.sees)
    return json_reply(contexts_object(agent_id, contexts, registered=registered))


def _agent_id(request: Request) -> AgentId:
    return AgentId(_AGENT_ID.read(request))


AGENT_CACHE_OPERATIONS: Final = (
    Operation(
        "GET /v1/agents/{agent_id}/cache",
        get_cache,
        id="getAgentCache",
        summary="Return the cache state of the context of an agent",
        parameters=(_AGENT_ID,),
        reply=AgentCache,
    ),
    Operation(
        "DELETE /v1/agents/{agent_id}/cache",
        forget_cache,
        id="forgetAgentCache",
        summary="Delete the cached blocks that only this agent uses",
        parameters=(_AGENT_ID,),
        reply=ForgottenCache,
    ),
    Operation(
        "GET /v1/agents/{agent_id}/blocks",
        get_blocks,
        id="getAgentBlocks",
        summary="Return the contexts of an agent as maps of blocks",
        parameters=(_AGENT_ID,),
        reply=AgentContextMaps,
    ),
)
