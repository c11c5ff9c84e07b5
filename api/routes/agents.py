"""``/v1/agents``: agents that keep their own history."""

from __future__ import annotations

from typing import Final

from api.http.messages import Reply, Request, StreamReply
from api.http.query import text, whole_number
from api.http.replies import json_reply
from api.http.request_headers import preferred_wait_s
from api.presenters.agents import agent_cache, agent_object, full_agent_object
from api.protocols.native.agents import profile_of
from api.protocols.native.stream import NativeEncoder
from api.routes.generate import ATTACHED_HEADER, JOB_HEADER
from api.routes.jobs import WAIT_MAX_S, accepted_reply
from api.schemas.agents import (
    AGENT_ID_PATTERN,
    AgentBody,
    AgentList,
    DeletedAgent,
    ForkBody,
    TurnBody,
)
from api.schemas.base import parse_body
from api.services import Services
from api.streaming.item_buffer import ItemBuffer
from api.streaming.job_stream import JobStream
from api.streaming.reattach import follow_job
from api.submission.agent_turns import AddedTurn, add_turn, withdraw
from domain.agent.state import Agent
from domain.errors import EngineFailure, InvalidRequest
from domain.ports import IdSource
from domain.usecases.agents import (
    delete,
    fork,
    last_status,
    list_agents,
    load_agent,
    register,
)
from domain.values import AgentId, JobStatus

PAGE_DEFAULT: Final = 20
PAGE_MAX: Final = 100
#: Says which turn of its agent a job is.
TURN_HEADER: Final = "x-semantic-turn"
#: Every field of an agent, and of a fork, may be left out; then so may the body.
_NO_BODY: Final = b"{}"


async def create_agent(request: Request, *, services: Services) -> Reply:
    """Make an agent; the same request again gives the same agent."""
    wire = parse_body(AgentBody, request.body or _NO_BODY)
    agent, is_new = await services.call(
        register,
        AgentId(wire.id) if wire.id is not None else _fresh_id(services.ids),
        profile_of(wire),
        correlation_id=request.id,
        log=services.log,
        ids=services.ids,
    )
    return await _agent_reply(agent, services, status=201 if is_new else 200)


async def list_all(request: Request, *, services: Services) -> Reply:
    """List agents, those made last first."""
    limit = whole_number(request.query, "limit", default=PAGE_DEFAULT, least=1, most=PAGE_MAX)
    before = text(request.query, "before", pattern=AGENT_ID_PATTERN)
    agents = await services.call(list_agents, log=services.log)
    names = [agent.id for agent in agents]
    first = 0
    if before is not None:
        first = names.index(AgentId(before)) + 1 if before in names else len(names)
    rows = agents[first : first + limit]
    has_more = first + limit < len(agents)
    body: AgentList = {
        "object": "list",
        "data": [agent_object(agent) for agent in rows],
        "has_more": has_more,
        "next_before": rows[-1].id if has_more else None,
    }
    return json_reply(body)


async def get_agent(request: Request, *, services: Services) -> Reply:
    """Show one agent with its latest turns."""
    agent = await services.call(load_agent, _named(request), log=services.log)
    return await _agent_reply(agent, services)


async def delete_agent(request: Request, *, services: Services) -> Reply:
    """Show an agent no more; an open turn of it is cancelled."""
    agent = await services.call(
        delete, _named(request), correlation_id=request.id, log=services.log, ids=services.ids
    )
    status = await services.call(last_status, agent, services.views)
    if agent.last is not None and status in (JobStatus.QUEUED, JobStatus.RUNNING):
        await services.call(withdraw, agent.last, services)
    body: DeletedAgent = {"id": agent.id, "object": "agent", "deleted": True}
    return json_reply(body)


async def generate_turn(request: Request, *, services: Services) -> Reply | StreamReply:
    """Add a turn: its job at once, its whole answer after a while, or its items as they come."""
    wait_s = preferred_wait_s(request.headers, most_s=WAIT_MAX_S)
    wire = parse_body(TurnBody, request.body)
    added = await add_turn(_named(request), wire, request, services)
    if wire.stream:
        return await _stream(added, request, services)
    headers = {TURN_HEADER: str(added.turn)}
    return await accepted_reply(added.accepted, wait_s, request, services, more=headers)


async def fork_agent(request: Request, *, services: Services) -> Reply:
    """Make an agent that begins where this one was after one of its turns."""
    wire = parse_body(ForkBody, request.body or _NO_BODY)
    if wire.id is not None and wire.id == request.params["agent_id"]:
        msg = "a fork needs a name of its own"
        raise InvalidRequest(msg, field="id")
    child = await services.call(
        fork,
        _named(request),
        AgentId(wire.id) if wire.id is not None else _fresh_id(services.ids),
        from_turn=wire.from_turn,
        correlation_id=request.id,
        log=services.log,
        views=services.views,
        ids=services.ids,
    )
    return await _agent_reply(child, services, status=201)


async def get_cache(request: Request, *, services: Services) -> Reply:
    """Show what is known of an agent's context, also of one that was never registered."""
    return json_reply(await services.call(agent_cache, _named(request), services))


async def _stream(added: AddedTurn, request: Request, services: Services) -> StreamReply:
    job_id = added.accepted.job_id
    headers = {JOB_HEADER: job_id, TURN_HEADER: str(added.turn)}
    if added.accepted.attached is not None:
        headers[ATTACHED_HEADER] = added.accepted.attached
    items = await follow_job(job_id, after=-1, services=services)
    if items is None:  # not for a reader that has nothing yet: it is told at least the end
        raise EngineFailure("the answer of this turn cannot be found")
    feed = ItemBuffer(items, request, on_gone=_leave_alone)
    pieces = JobStream(feed, NativeEncoder(), ping_s=services.ping_s)
    return StreamReply(pieces=pieces, headers=headers)


async def _agent_reply(agent: Agent, services: Services, *, status: int = 200) -> Reply:
    shown = await services.call(full_agent_object, agent, services)
    return json_reply(shown, status=status, headers={"location": shown["links"]["self"]})


def _named(request: Request) -> AgentId:
    return AgentId(request.params["agent_id"])


def _fresh_id(ids: IdSource) -> AgentId:
    return AgentId("a-" + ids.job_id().removeprefix("job-"))


def _leave_alone() -> None:
    """The turn goes on without this reader."""
