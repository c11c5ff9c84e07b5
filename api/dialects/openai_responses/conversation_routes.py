"""``/v1/conversations``: the items of a conversation, which responses continue."""

from __future__ import annotations

from typing import Any, Final

from api.app import App
from api.dialects.agents.routes import remove_agent
from api.dialects.openai_responses.bodies import (
    CONVERSATION_ID_PATTERN,
    ConversationBody,
    ConversationChangeBody,
    ConversationItemsBody,
    ConversationObject,
    InputItem,
)
from api.dialects.openai_responses.conversations import (
    change_conversation,
    counted_turns,
    items_of,
    load_conversation,
)
from api.dialects.openai_responses.encode import find_item
from api.dialects.openai_responses.parse import listed_items, stored_items
from api.dialects.openai_responses.routes import (
    PAGE_PARAMETERS,
    read_page,
)
from api.dialects.openai_responses.stored import resolve_item, turn_items
from api.generation import job_hex, unix_seconds
from api.http.messages import Deleted, Listing, Request, listing_of
from api.http.operation import Operation, body_of, path
from domain.agent.state import Agent, Conversation, Profile
from domain.errors import ItemNotFound
from domain.values import AgentId

#: All fields of a new conversation are optional, so the body is as well.
_NO_BODY: Final = b"{}"
_CONVERSATION_ID: Final = path(
    "conversation_id", pattern=CONVERSATION_ID_PATTERN, example="conv_" + "0" * 32
)
_ITEM_ID: Final = path("item_id", pattern=r"^[A-Za-z0-9_-]{1,128}$", example="msg_0_i0")


async def create_conversation(app: App, request: Request) -> ConversationObject:
    """Create a conversation."""
    wire = body_of(ConversationBody, request, empty=_NO_BODY)
    agent_id = AgentId("conv_" + job_hex(app.ids.job_id()))
    items = await app.call(_new_items, app, wire.items or [], request)
    held = Conversation(added=tuple((0, item) for item in items))
    profile = Profile(metadata=wire.metadata or {}, conversation=held)
    owner = await app.call(app.ownership.claim_agent, request.caller, agent_id)
    agent, _ = await app.call(
        app.agent_records.register, agent_id, profile, correlation_id=request.id, owner=owner
    )
    return _conversation_object(agent, profile)


async def get_conversation(app: App, request: Request) -> ConversationObject:
    """Return a conversation without its items."""
    agent, profile, _ = await app.call(load_conversation, app, _CONVERSATION_ID.read(request))
    return _conversation_object(agent, profile)


async def update_conversation(app: App, request: Request) -> ConversationObject:
    """Replace the metadata of a conversation."""
    wire = body_of(ConversationChangeBody, request)
    conversation_id = _CONVERSATION_ID.read(request)
    await app.call(change_conversation, app, conversation_id, wire.metadata or {}, request)
    return await get_conversation(app, request)


async def delete_conversation(app: App, request: Request) -> Deleted:
    """Delete a conversation; cancel its response that has not ended."""
    conversation_id = _CONVERSATION_ID.read(request)
    agent, _, __ = await app.call(load_conversation, app, conversation_id)
    await app.call(remove_agent, app, agent.id, request)
    return {
        "id": conversation_id,
        "object": "conversation.deleted",
        "deleted": True,
    }


async def create_conversation_items(app: App, request: Request) -> Listing[dict[str, Any]]:
    """Put items at the end of a conversation."""
    wire = body_of(ConversationItemsBody, request)
    items = await app.call(_new_items, app, wire.items, request)
    added = Conversation(added=tuple((0, item) for item in items))
    await app.call(change_conversation, app, _CONVERSATION_ID.read(request), added, request)
    return listing_of(items, has_more=False)


async def list_conversation_items(app: App, request: Request) -> Listing[dict[str, Any]]:
    """List the items of a conversation, those of its responses too."""
    page = read_page(request)
    items = await app.call(_all_items, app, _CONVERSATION_ID.read(request))
    return page.of(items)


async def get_conversation_item(app: App, request: Request) -> dict[str, Any]:
    """Return an item of a conversation."""
    return await app.call(_item, app, request)


async def delete_conversation_item(app: App, request: Request) -> ConversationObject:
    """Take an item out of a conversation.

    Later responses do not see it.
    """
    item = await app.call(_item, app, request)
    removed = Conversation(removed=(item["id"],))
    await app.call(change_conversation, app, _CONVERSATION_ID.read(request), removed, request)
    return await get_conversation(app, request)


def _new_items(app: App, items: list[InputItem], request: Request) -> list[dict[str, Any]]:
    resolved = [
        resolve_item(app, item, index, request.caller)
        for index, item in enumerate(stored_items(items, "items"))
    ]
    return listed_items(resolved, job_hex(app.ids.job_id()))


def _all_items(app: App, conversation_id: str) -> list[dict[str, Any]]:
    agent, _, held = load_conversation(app, conversation_id)
    return items_of(held, [turn_items(app, job_id) for job_id in counted_turns(app, agent)])


def _item(app: App, request: Request) -> dict[str, Any]:
    item_id = _ITEM_ID.read(request)
    found = find_item(_all_items(app, _CONVERSATION_ID.read(request)), item_id)
    if found is None:
        raise ItemNotFound(item_id)
    return dict(found)


def _conversation_object(agent: Agent, profile: Profile) -> ConversationObject:
    return {
        "id": agent.id,
        "object": "conversation",
        "created_at": unix_seconds(agent.created_at),
        "metadata": dict(profile.metadata),
    }


CONVERSATION_OPERATIONS: Final = (
    Operation(
        "POST /v1/conversations",
        create_conversation,
        body=ConversationBody,
        body_required=False,
        example={"metadata": {"topic": "letters"}},
    ),
    Operation(
        "GET /v1/conversations/{conversation_id}",
        get_conversation,
        parameters=(_CONVERSATION_ID,),
    ),
    Operation(
        "POST /v1/conversations/{conversation_id}",
        update_conversation,
        parameters=(_CONVERSATION_ID,),
        body=ConversationChangeBody,
        example={"metadata": {"topic": "letters"}},
    ),
    Operation(
        "DELETE /v1/conversations/{conversation_id}",
        delete_conversation,
        parameters=(_CONVERSATION_ID,),
    ),
    Operation(
        "POST /v1/conversations/{conversation_id}/items",
        create_conversation_items,
        parameters=(_CONVERSATION_ID,),
        body=ConversationItemsBody,
        example={"items": [{"role": "user", "content": "Good morning."}]},
        responses={409: "A response of the conversation has not ended"},
    ),
    Operation(
        "GET /v1/conversations/{conversation_id}/items",
        list_conversation_items,
        parameters=(_CONVERSATION_ID, *PAGE_PARAMETERS),
    ),
    Operation(
        "GET /v1/conversations/{conversation_id}/items/{item_id}",
        get_conversation_item,
        parameters=(_CONVERSATION_ID, _ITEM_ID),
    ),
    Operation(
        "DELETE /v1/conversations/{conversation_id}/items/{item_id}",
        delete_conversation_item,
        parameters=(_CONVERSATION_ID, _ITEM_ID),
        responses={409: "A response of the conversation has not ended"},
    ),
)
