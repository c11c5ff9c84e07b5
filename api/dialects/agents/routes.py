"""``/v1/agents``: agents that keep their own history, and the cached contexts of all agents."""

from __future__ import annotations

from typing import Final

from api.app import App
from api.dialects.agents.bodies import (
    KNOWN_AGENT_PATTERN,
    AgentBody,
    AgentCache,
    AgentChangeBody,
    AgentContextMaps,
    AgentList,
    AgentMessages,
    AgentObject,
    DeletedAgent,
    ForgottenCache,
    ForkBody,
    TurnBody,
)
from api.dialects.agents.objects import (
    contexts_object,
    is_registered,
    listed_agent_object,
    load_agent_cache,
    messages_object,
    present_agent,
)
from api.dialects.agents.turns import AddedTurn, add_turn, changed_profile, profile_of
from api.dialects.generate import ATTACHED_HEADER, QUEUE_FULL
from api.dialects.jobs.bodies import JobObject
from api.dialects.jobs.objects import load_job
from api.dialects.jobs.routes import accepted_reply
from api.dialects.jobs.wire import NativeEncoder
from api.http.bodies import parse_body
from api.http.messages import JOB_HEADER, Reply, Request, StreamReply, json_reply
from api.http.operation import (
    IDEMPOTENCY_KEY,
    PREFERRED_WAIT_S,
    Operation,
    flag,
    page_size,
    path,
    text,
)
from api.streaming.answers import JobStream
from domain.agent.state import Agent
from domain.errors import InvalidRequest
from domain.ports import IdSource
from domain.values import AgentId, JobStatus

#: Number of the turn that a job answers.
TURN_HEADER: Final = "x-semantic-turn"
#: All fields of an agent and of a fork are optional, so the body is as well.
_NO_BODY: Final = b"{}"

_AGENT_ID: Final = path("agent_id", pattern=KNOWN_AGENT_PATTERN, example="writer")
_LIMIT: Final = page_size(default=20, most=100)
_BEFORE: Final = text("before", "only agents listed after this one")
_SEEN: Final = flag(
    "seen", "list every agent that the log names, such as sessions of clients, by last activity"
)


async def create_agent(app: App, request: Request) -> Reply:
    """Create an agent; a repeated request returns the same agent."""
    wire = parse_body(AgentBody, request.body or _NO_BODY)
    agent_id = AgentId(wire.id) if wire.id is not None else _fresh_id(app.ids)
    owner = await app.call(app.ownership.claim_agent, request.caller, agent_id)
    agent, is_new = await app.call(
        app.agent_records.register,
        agent_id,
        profile_of(wire),
        correlation_id=request.id,
        owner=owner,
    )
    return await _agent_reply(agent, app, status=201 if is_new else 200)


async def list_all(app: App, request: Request) -> Reply:
    """List agents, newest first, or all that were seen, the latest seen first."""
    before = _BEFORE.read(request)
    page = await app.call(
        app.agent_views.page,
        limit=_LIMIT.read(request),
        before=AgentId(before) if before is not None else None,
        is_registered=not _SEEN.read(request),
        owner=request.caller.sees,
    )
    body: AgentList = {
        "object": "list",
        "data": [listed_agent_object(view) for view in page.agents],
        "has_more": page.has_more,
        "next_before": page.agents[-1].id if page.has_more else None,
    }
    return json_reply(body)


async def get_agent(app: App, request: Request) -> Reply:
    """Return one agent with its latest turns."""
    agent = await app.call(app.agent_records.load, _agent_id(request))
    return await _agent_reply(agent, app)


async def list_messages(app: App, request: Request) -> Reply:
    """Return the conversation of an agent."""
    agent = await app.call(app.agent_records.load, _agent_id(request))
    messages = await app.call(app.agent_records.conversation, agent)
    return json_reply(messages_object(messages, agent.last or agent.base))


async def change_agent(app: App, request: Request) -> Reply:
    """Change metadata and default options of an agent; later turns use them."""
    wire = parse_body(AgentChangeBody, request.body)
    agent = await app.call(
        app.agent_records.change,
        _agent_id(request),
        lambda _, before: changed_profile(wire, before),
        correlation_id=request.id,
    )
    return await _agent_reply(agent, app)


async def delete_agent(app: App, request: Request) -> Reply:
    """Delete an agent and cancel its open turn."""
    agent_id = _agent_id(request)
    await remove_agent(app, agent_id, request)
    body: DeletedAgent = {"id": agent_id, "object": "agent", "deleted": True}
    return json_reply(body)


async def remove_agent(app: App, agent_id: AgentId, request: Request) -> None:
    """Delete an agent and cancel its open turn.

    Raises:
        AgentNotFound: There is no such agent.
    """
    agent = await app.call(app.agent_records.delete, agent_id, correlation_id=request.id)
    status = await app.call(app.agent_records.last_status, agent)
    if agent.last is not None and status in (JobStatus.QUEUED, JobStatus.RUNNING):
        await app.call(app.cancellation.cancel, agent.last, reason="agent_deleted")


async def generate_turn(app: App, request: Request) -> Reply | StreamReply:
    """Add a turn; return its job at once or after its end, or stream its items."""
    wait_s = PREFERRED_WAIT_S.read(request)
    wire = parse_body(TurnBody, request.body)
    added = await app.call(add_turn, app, _agent_id(request), wire, request)
    if wire.stream:
        return await _stream(added, request, app)
    job = await app.call(load_job, app, added.accepted.job_id, request.caller)
    headers = {TURN_HEADER: str(added.turn)}
    return await accepted_reply(added.accepted, job, wait_s, request, app, more=headers)


async def fork_agent(app: App, request: Request) -> Reply:
    """Create an agent with the history of this one up to one of its turns."""
    wire = parse_body(ForkBody, request.body or _NO_BODY)
    if wire.id is not None and wire.id == _AGENT_ID.read(request):
        msg = "a fork needs a name of its own"
        raise InvalidRequest(msg, field="id")
    parent_id = _agent_id(request)
    child_id = AgentId(wire.id) if wire.id is not None else _fresh_id(app.ids)
    fork_owner = app.ownership.owner_of_fork
    owner = await app.call(fork_owner, request.caller, parent_id, child_id)
    child = await app.call(
        app.agent_records.fork,
        parent_id,
        child_id,
        from_turn=wire.from_turn,
        correlation_id=request.id,
        owner=owner,
    )
    return await _agent_reply(child, app, status=201)


async def _stream(added: AddedTurn, request: Request, app: App) -> StreamReply:
    job_id = added.accepted.job_id
    headers = {JOB_HEADER: job_id, TURN_HEADER: str(added.turn)}
    if added.accepted.attached is not None:
        headers[ATTACHED_HEADER] = added.accepted.attached
    job = await app.feed.open_job(job_id, request)
    pieces = JobStream(job, NativeEncoder(), ping_s=app.ping_s)
    return StreamReply(pieces=pieces, headers=headers)


async def _agent_reply(agent: Agent, app: App, *, status: int = 200) -> Reply:
    shown = await app.call(present_agent, app, agent)
    return json_reply(shown, status=status, headers={"location": shown["links"]["self"]})


def _agent_id(request: Request) -> AgentId:
    return AgentId(_AGENT_ID.read(request))


def _fresh_id(ids: IdSource) -> AgentId:
    return AgentId("a-" + ids.job_id().removeprefix("job-"))


AGENT_OPERATIONS: Final = (
    Operation(
        "POST /v1/agents",
        create_agent,
        id="createAgent",
        summary="Create an agent that keeps its own history",
        body=AgentBody,
        body_required=False,
        example={"id": "writer", "system": "You write short letters.", "max_tokens": 32},
        reply=AgentObject,
        status=201,
        may_be_done=True,
        responses={409: "Another agent has this name"},
    ),
    Operation(
        "GET /v1/agents",
        list_all,
        id="listAgents",
        summary="List the agents of this service, newest first",
        parameters=(_LIMIT, _BEFORE, _SEEN),
        reply=AgentList,
    ),
    Operation(
        "GET /v1/agents/{agent_id}",
        get_agent,
        id="getAgent",
        summary="Return an agent with its latest turns",
        parameters=(_AGENT_ID,),
        reply=AgentObject,
    ),
    Operation(
        "PATCH /v1/agents/{agent_id}",
        change_agent,
        id="changeAgent",
        summary="Change metadata and default options of an agent",
        parameters=(_AGENT_ID,),
        body=AgentChangeBody,
        example={"max_tokens": 64, "metadata": {"team": "letters"}},
        reply=AgentObject,
    ),
    Operation(
        "GET /v1/agents/{agent_id}/messages",
        list_messages,
        id="listAgentMessages",
        summary="Return the conversation of an agent, inherited turns included",
        parameters=(_AGENT_ID,),
        reply=AgentMessages,
    ),
    Operation(
        "DELETE /v1/agents/{agent_id}",
        delete_agent,
        id="deleteAgent",
        summary="Delete an agent and cancel its open turn",
        parameters=(_AGENT_ID,),
        reply=DeletedAgent,
    ),
    Operation(
        "POST /v1/agents/{agent_id}/generate",
        generate_turn,
        id="generateTurn",
        summary="Add a turn to the history of an agent",
        parameters=(_AGENT_ID, IDEMPOTENCY_KEY, PREFERRED_WAIT_S),
        body=TurnBody,
        example={"prompt": "Say hello.", "max_tokens": 32},
        reply=JobObject,
        status=202,
        may_be_done=True,
        is_streamed=True,
        has_links=True,
        responses={
            409: "A turn is open, or the agent has another number of turns; turn has that number",
            429: QUEUE_FULL,
        },
    ),
    Operation(
        "POST /v1/agents/{agent_id}/fork",
        fork_agent,
        id="forkAgent",
        summary="Create an agent with the history of this one up to one of its turns",
        parameters=(_AGENT_ID,),
        body=ForkBody,
        body_required=False,
        example={"from_turn": 0},
        reply=AgentObject,
        status=201,
        responses={409: "Another agent has this name"},
    ),
)


async def get_cache(app: App, request: Request) -> Reply:
    """Return the cache state of an agent's context, also of an agent that was never registered."""
    return json_reply(await app.call(load_agent_cache, app, _agent_id(request)))


async def forget_cache(app: App, request: Request) -> Reply:
    """Delete the blocks that only this agent's contexts use."""
    agent_id = _agent_id(request)
    await app.call(is_registered, app, agent_id)
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
    registered = await app.call(is_registered, app, agent_id)
    contexts = await app.call(app.agent_contexts.read, agent_id, request.caller.sees)
    return json_reply(contexts_object(agent_id, contexts, registered=registered))


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
