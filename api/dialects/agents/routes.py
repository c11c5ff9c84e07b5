"""``/v1/agents``: agents that keep their own history, and the cached contexts of all agents."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from itertools import zip_longest
from typing import Any, Final
from urllib.parse import quote

from api.app import App
from api.dialects.agents.bodies import (
    KNOWN_AGENT_PATTERN,
    AgentActivity,
    AgentBody,
    AgentCache,
    AgentChangeBody,
    AgentContextMaps,
    AgentLinks,
    AgentMessage,
    AgentMisses,
    AgentObject,
    AgentTurn,
    CacheHit,
    CacheMiss,
    ContextBlock,
    ForgottenCache,
    ForkBody,
    MappedContextObject,
    SavedContext,
    TurnBody,
)
from api.dialects.agents.turns import add_turn, changed_profile, profile_of
from api.dialects.generate import ATTACHED_HEADER, QUEUE_FULL
from api.dialects.jobs.bodies import JobObject
from api.dialects.jobs.objects import cache_object, load_job
from api.dialects.jobs.routes import accepted_reply
from api.dialects.jobs.wire import NativeEncoder
from api.dialects.parsing import PART_BREAK
from api.http.messages import (
    JOB_HEADER,
    Deleted,
    NewestPage,
    Objects,
    Reply,
    Request,
    StreamReply,
    json_reply,
    newest_page,
    shown,
)
from api.http.operation import (
    IDEMPOTENCY_KEY,
    PREFERRED_WAIT_S,
    Operation,
    body_of,
    flag,
    page_size,
    path,
    text,
)
from api.streaming.answers import JobStream
from domain.agent.contexts import MappedContext
from domain.agent.state import Agent
from domain.chat.images import IMAGE_MARK
from domain.chat.request import Message
from domain.errors import AgentNotFound, InvalidRequest, PayloadMissing
from domain.events.agent import AgentDeleted, AgentForgotten, AgentForked, AgentRegistered
from domain.events.cache import (
    AgentCacheEvicted,
    AgentCacheMissed,
    AgentCacheRestored,
    AgentCacheSaved,
)
from domain.job.listing import JobFilter
from domain.kv.spec import BLOCK_TOKENS
from domain.log.codec import decode_recorded
from domain.log.record import AGENT_STREAM, EventFilter, RecordedEvent
from domain.ports import IdSource
from domain.values import AgentId, JobId, JobStatus, StreamName

#: Most names of other agents that share blocks with a context.
SHARED_WITH_MAX: Final = 20
#: Turns of the history of an agent.
HISTORY_MAX: Final = 20
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


def create_agent(app: App, request: Request) -> Reply:
    """Create an agent that keeps its own history.

    A repeated request returns the same agent.
    """
    wire = body_of(AgentBody, request, empty=_NO_BODY)
    agent_id = AgentId(wire.id) if wire.id is not None else _fresh_id(app.ids)
    owner = app.ownership.claim_agent(request.caller, agent_id)
    agent, is_new = app.agent_records.register(
        agent_id, profile_of(wire), correlation_id=request.id, owner=owner
    )
    return _agent_reply(agent, app, status=201 if is_new else 200)


def list_agents(app: App, request: Request) -> NewestPage[AgentObject]:
    """List the agents of this service, newest first.

    With ``seen``, all that the log names, the latest seen first.
    """
    before = _BEFORE.read(request)
    page = app.agent_views.page(
        limit=_LIMIT.read(request),
        before=AgentId(before) if before is not None else None,
        is_registered=not _SEEN.read(request),
        owner=request.caller.sees,
    )
    rows = [_listed_agent(view) for view in page.agents]
    return newest_page(rows, has_more=page.has_more)


def get_agent(app: App, request: Request) -> Reply:
    """Return an agent with its latest turns."""
    return _agent_reply(app.agent_records.load(_agent_id(request)), app)


def list_agent_messages(app: App, request: Request) -> Objects[AgentMessage]:
    """Return the conversation of an agent, inherited turns included.

    The answer of the last turn is missing while it is open, and partial if it was stopped.
    """
    agent = app.agent_records.load(_agent_id(request))
    messages = app.agent_records.conversation(agent)
    job: str | None = agent.last or agent.base
    data: list[AgentMessage] = []
    for one in reversed(messages):
        job = one.origin or job
        data.append(_message(one, None if one.role == "system" else job))
    return {"object": "list", "data": data[::-1]}


def change_agent(app: App, request: Request) -> Reply:
    """Change metadata and default options of an agent."""
    wire = body_of(AgentChangeBody, request)
    agent = app.agent_records.change(
        _agent_id(request),
        lambda _, before: changed_profile(wire, before),
        correlation_id=request.id,
    )
    return _agent_reply(agent, app)


def delete_agent(app: App, request: Request) -> Deleted:
    """Delete an agent and cancel its open turn."""
    agent_id = _agent_id(request)
    remove_agent(app, agent_id, request)
    return {"id": agent_id, "object": "agent", "deleted": True}


def remove_agent(app: App, agent_id: AgentId, request: Request) -> None:
    """Delete an agent and cancel its open turn.

    Raises:
        AgentNotFound: There is no such agent.
    """
    agent = app.agent_records.delete(agent_id, correlation_id=request.id)
    status = app.agent_records.last_status(agent)
    if agent.last is not None and status in (JobStatus.QUEUED, JobStatus.RUNNING):
        app.cancellation.cancel(agent.last, reason="agent_deleted")


async def generate_turn(app: App, request: Request) -> Reply | StreamReply:
    """Add a turn to the history of an agent.

    The reply is its job, at once or after its end, or the stream of its items.
    """
    wait_s = PREFERRED_WAIT_S.read(request)
    wire = body_of(TurnBody, request)
    accepted, planned = await app.call(add_turn, app, _agent_id(request), wire, request)
    headers = {TURN_HEADER: str(planned.turn)}
    if not wire.stream:
        present = await app.call(load_job, app, accepted.job_id, request.caller)
        return await accepted_reply(accepted, present, wait_s, request, app, more=headers)
    headers[JOB_HEADER] = accepted.job_id
    if accepted.attached is not None:
        headers[ATTACHED_HEADER] = accepted.attached
    job = await app.feed.open_job(accepted.job_id, request)
    pieces = JobStream(job, NativeEncoder(), ping_s=app.ping_s)
    return StreamReply(pieces=pieces, headers=headers)


def fork_agent(app: App, request: Request) -> Reply:
    """Create an agent with the history of this one up to one of its turns."""
    wire = body_of(ForkBody, request, empty=_NO_BODY)
    if wire.id is not None and wire.id == _AGENT_ID.read(request):
        raise InvalidRequest("a fork needs a name of its own", field="id")
    parent_id = _agent_id(request)
    child_id = AgentId(wire.id) if wire.id is not None else _fresh_id(app.ids)
    owner = app.ownership.owner_of_fork(request.caller, parent_id, child_id)
    child = app.agent_records.fork(
        parent_id, child_id, from_turn=wire.from_turn, correlation_id=request.id, owner=owner
    )
    return _agent_reply(child, app, status=201)


def _agent_reply(agent: Agent, app: App, *, status: int = 200) -> Reply:
    whole = _present_agent(app, agent)
    return json_reply(whole, status=status, headers={"location": whole["links"]["self"]})


def _agent_object(agent: Agent, *, registered: bool = True) -> AgentObject:
    """Return an agent without its turns; one that was not created here has only a cache."""
    path = f"/v1/agents/{quote(agent.id, safe='')}"
    links: AgentLinks = {"cache": f"{path}/cache"}
    if registered:
        links |= {
            "self": path,
            "generate": f"{path}/generate",
            "messages": f"{path}/messages",
            "fork": f"{path}/fork",
        }
    return shown(
        AgentObject,
        agent,
        object="agent",
        created_at=agent.created_at or agent.first_seen,
        forked_from={"agent_id": agent.parent, "turn": agent.inherited} if agent.parent else None,
        links=links,
    )


def _listed_agent(view: Agent) -> AgentObject:
    """Return a row of the list of agents."""
    row = _agent_object(view, registered=view.exists)
    row["registered"], figures = view.exists, view.figures
    misses: AgentMisses = {
        "diverged": figures.misses_diverged,
        "gone": figures.misses_gone,
        "model_changed": figures.misses_model_changed,
    }
    blocks = view.disk_blocks
    row["activity"] = shown(AgentActivity, view, figures, misses=misses, context_blocks=blocks)
    return row


def _message(one: Message, job: str | None) -> AgentMessage:
    shown: AgentMessage = {"role": one.role, "content": _content(one), "job": job}
    if one.reasoning:
        shown["reasoning_content"] = one.reasoning
    if one.tool_calls:
        shown["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
            }
            for call in one.tool_calls
        ]
    if one.tool_call_id is not None:
        shown["tool_call_id"] = one.tool_call_id
    return shown


def _content(one: Message) -> str | list[dict[str, Any]]:
    """Return the content of a message; where it has images, as parts in their order."""
    if not one.images:
        return one.content
    parts: list[dict[str, Any]] = []
    for words, image in zip_longest(one.content.split(IMAGE_MARK), one.images):
        # The parser joins parts by a break, and would add another one to a part that has it.
        stripped = words.removeprefix(PART_BREAK) if parts else words
        stripped = stripped.removesuffix(PART_BREAK) if image else stripped
        if stripped:
            parts.append({"type": "text", "text": stripped})
        if image:
            parts.append({"type": "image_url", "image_url": {"url": image.url}})
    return parts


def _present_agent(app: App, agent: Agent) -> AgentObject:
    """Return an agent with its profile, unless it was erased, and its latest turns."""
    status = app.agent_records.last_status(agent)
    whole = _agent_object(agent)
    whole["turns"] = agent.counted(status)
    whole["open_job"] = agent.last if status is not None and not status.is_terminal else None
    whole |= {"system": None, "tools": None, "options": None, "metadata": None}
    with suppress(PayloadMissing):
        profile = app.agent_records.profile_of(agent)
        whole["system"] = profile.system
        whole["tools"] = [dict(tool) for tool in profile.tools]
        whole["options"] = profile.options.by_name()
        whole["metadata"] = dict(profile.metadata)
    own = list(enumerate(agent.turns, start=agent.inherited + 1))
    whole["history"] = [_turn(app, number, job) for number, job in own[-HISTORY_MAX:]]
    return whole


def _turn(app: App, number: int, job: JobId) -> AgentTurn:
    view = app.views.get(job)
    status = JobStatus.EXPIRED if view is None else view.status
    counts = status is JobStatus.COMPLETED
    return {"turn": number, "job": job, "status": status, "counts": counts}


def _agent_id(request: Request) -> AgentId:
    return AgentId(_AGENT_ID.read(request))


def _fresh_id(ids: IdSource) -> AgentId:
    return AgentId("a-" + ids.job_id().removeprefix("job-"))


def get_agent_cache(app: App, request: Request) -> AgentCache:
    """Return the cache state of the context of an agent.

    It may have never been registered.

    Raises:
        AgentNotFound: The agent has neither events nor jobs, or was deleted.
    """
    agent_id = _agent_id(request)
    recorded = app.log.load(StreamName(AGENT_STREAM + agent_id))
    jobs = app.views.page(JobFilter(agent=agent_id), limit=1).jobs
    found = _cache_events(recorded)
    if found is None or not (recorded or jobs):
        raise AgentNotFound(agent_id)
    diagnosis = app.records.diagnose(jobs[0].id) if jobs else None
    return {
        "object": "agent.cache",
        "agent_id": agent_id,
        "context": found[0],
        "last_hit": found[1],
        "last_miss": found[2],
        "latest": {"job": jobs[0].id, **cache_object(diagnosis)} if diagnosis else None,
    }


def _cache_events(
    recorded: Sequence[RecordedEvent],
) -> tuple[SavedContext | None, CacheHit | None, CacheMiss | None] | None:
    """Return what the stream of an agent states of its context; ``None`` if it was deleted."""
    context: SavedContext | None = None
    hit: CacheHit | None = None
    miss: CacheMiss | None = None
    is_deleted = False
    for one in recorded:
        match decode_recorded(one):
            case AgentCacheSaved() as event:
                count = len(event.blocks) + (event.tail is not None)
                at = one.recorded_at
                context = shown(SavedContext, event, at=at, blocks=count, tier="disk")
            case AgentCacheRestored() as event:
                hit = shown(CacheHit, event, at=one.recorded_at)
            case AgentCacheMissed() as event:
                miss = shown(CacheMiss, event, at=one.recorded_at)
            case AgentCacheEvicted():
                context = None
            case (AgentDeleted() | AgentForgotten()) as event:
                context = hit = miss = None
                is_deleted = isinstance(event, AgentDeleted)
            case AgentRegistered() | AgentForked():
                is_deleted = False
            case _:
                pass
    return None if is_deleted else (context, hit, miss)


def forget_agent_cache(app: App, request: Request) -> ForgottenCache:
    """Delete the cached blocks that only this agent uses."""
    agent_id = _agent_id(request)
    _is_registered(app, agent_id)
    blocks = app.agent_contexts.forget(agent_id, correlation_id=request.id)
    body: ForgottenCache = {
        "object": "agent.cache",
        "agent_id": agent_id,
        "deleted": blocks > 0,
        "blocks": blocks,
    }
    return body


def get_agent_blocks(app: App, request: Request) -> AgentContextMaps:
    """Return the contexts of an agent as maps of blocks."""
    agent_id = _agent_id(request)
    registered = _is_registered(app, agent_id)
    contexts = app.agent_contexts.read(agent_id, request.caller.sees)
    return {
        "object": "agent.blocks",
        "agent_id": agent_id,
        "registered": registered,
        "block_tokens": BLOCK_TOKENS,
        "contexts": [_context(one) for one in contexts],
    }


def _context(context: MappedContext) -> MappedContextObject:
    blocks = [shown(ContextBlock, one, shared_with=len(one.agents)) for one in context.blocks]
    agents = sorted({str(agent) for block in context.blocks for agent in block.agents})
    sharing = agents[:SHARED_WITH_MAX]
    return shown(MappedContextObject, context, context.saved, blocks=blocks, shared_with=sharing)


def _is_registered(app: App, agent_id: AgentId) -> bool:
    """Return whether an agent was created here; others only have events or jobs.

    Raises:
        AgentNotFound: It has neither.
    """
    stream = StreamName(AGENT_STREAM + agent_id)
    events = app.log.select(EventFilter(stream=stream), limit=1)
    if not events and not app.views.page(JobFilter(agent=agent_id), limit=1).jobs:
        raise AgentNotFound(agent_id)
    try:
        app.agent_records.load(agent_id)
    except AgentNotFound:
        return False
    return True


AGENT_OPERATIONS: Final = (
    Operation(
        "POST /v1/agents",
        create_agent,
        body=AgentBody,
        body_required=False,
        example={"id": "writer", "system": "You write short letters.", "max_tokens": 32},
        reply=AgentObject,
        status=201,
        may_be_done=True,
        responses={409: "Another agent has this name"},
    ),
    Operation("GET /v1/agents", list_agents, parameters=(_LIMIT, _BEFORE, _SEEN)),
    Operation("GET /v1/agents/{agent_id}", get_agent, parameters=(_AGENT_ID,), reply=AgentObject),
    Operation(
        "PATCH /v1/agents/{agent_id}",
        change_agent,
        parameters=(_AGENT_ID,),
        body=AgentChangeBody,
        example={"max_tokens": 64, "metadata": {"team": "letters"}},
        reply=AgentObject,
    ),
    Operation("GET /v1/agents/{agent_id}/messages", list_agent_messages, parameters=(_AGENT_ID,)),
    Operation("DELETE /v1/agents/{agent_id}", delete_agent, parameters=(_AGENT_ID,)),
    Operation(
        "POST /v1/agents/{agent_id}/generate",
        generate_turn,
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
        parameters=(_AGENT_ID,),
        body=ForkBody,
        body_required=False,
        example={"from_turn": 0},
        reply=AgentObject,
        status=201,
        responses={409: "Another agent has this name"},
    ),
    Operation("GET /v1/agents/{agent_id}/cache", get_agent_cache, parameters=(_AGENT_ID,)),
    Operation("DELETE /v1/agents/{agent_id}/cache", forget_agent_cache, parameters=(_AGENT_ID,)),
    Operation("GET /v1/agents/{agent_id}/blocks", get_agent_blocks, parameters=(_AGENT_ID,)),
)
