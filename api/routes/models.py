"""``/v1/models``: the served models, with the fields of both Anthropic and OpenAI."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from api.http.messages import Reply, Request
from api.http.operation import Operation
from api.http.parameters import path
from api.http.replies import json_reply
from api.schemas.replies import ModelList, ModelObject
from api.services.route_services import StatusService
from domain.errors import QueueUnavailable
from domain.events.model import ModelLoaded
from domain.log.codec import decode_event
from domain.not_found import ModelNotFound
from domain.values import ModelCard

_MODEL_ID: Final = path("model_id", example="semantic-demo")
_OWNER: Final = "semantic"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


async def list_models(request: Request, status: StatusService) -> Reply:
    """List the served models, each under all its names."""
    del request
    models = await status.call(_models, status)
    page: ModelList = {
        "object": "list",
        "data": models,
        "has_more": False,
        "first_id": models[0]["id"] if models else None,
        "last_id": models[-1]["id"] if models else None,
    }
    return json_reply(page)


async def get_model(request: Request, status: StatusService) -> Reply:
    """Return one model; unlike a generation, this refuses names that do not exist."""
    name = _MODEL_ID.read(request)
    for model in await status.call(_models, status):
        if model["id"] == name:
            return json_reply(model)
    raise ModelNotFound(name)


def _models(status: StatusService) -> list[ModelObject]:
    cards = {card.id: card for card in _cards(status)}
    models = [_model(card.id, card) for card in cards.values()]
    if cards:
        first = next(iter(cards.values()))
        entry = status.registry().get(first.id)
        aliases = () if entry is None else entry.aliases
        models += [_model(name, first) for name in aliases if name not in cards]
    return models


def _cards(status: StatusService) -> list[ModelCard]:
    """Return the models of live workers; without any, the model that was loaded last."""
    try:
        pulses = status.pulses.alive()
    except QueueUnavailable:
        pulses = ()
    alive = [pulse.model for pulse in pulses if pulse.model is not None]
    if alive:
        return alive
    recorded = status.log.latest(ModelLoaded.__name__)
    if recorded is None:
        return []
    event = decode_event(recorded.type, recorded.schema_version, recorded.data)
    if not isinstance(event, ModelLoaded):
        return []
    return [event.card]


def _model(name: str, card: ModelCard) -> ModelObject:
    created = _instant(card.created_at)
    return {
        "id": name,
        "object": "model",
        "type": "model",
        "display_name": name,
        "created": int(created.timestamp()),
        "created_at": created.isoformat().replace("+00:00", "Z"),
        "owned_by": _OWNER,
        "lifecycle": "active",
        "description": card.description,
        "context_length": card.context_length,
        "max_input_tokens": card.context_length,
    }


def _instant(text: str) -> datetime:
    """Return an instant in UTC, the epoch if it is not valid."""
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        return _EPOCH
    return instant if instant.tzinfo else instant.replace(tzinfo=UTC)


MODEL_OPERATIONS: Final = (
    Operation(
        "GET /v1/models",
        list_models,
        id="listModels",
        summary="List the names of the loaded model",
        reply=ModelList,
    ),
    Operation(
        "GET /v1/models/{model_id}",
        get_model,
        id="getModel",
        summary="Return one model",
        parameters=(_MODEL_ID,),
        reply=ModelObject,
    ),
)
