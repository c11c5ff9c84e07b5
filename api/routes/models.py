"""``GET /v1/models`` and ``GET /v1/models/{model_id}``, in one shape for both families of SDKs."""

from __future__ import annotations

from datetime import UTC, datetime

from api.http.messages import Reply, Request
from api.http.replies import json_reply
from api.schemas.replies import ModelList, ModelObject
from api.services import Services
from domain.errors import ModelNotFound, QueueUnavailable
from domain.events.model import ModelLoaded
from domain.log.codec import decode_event
from domain.values import ModelCard

_OWNER = "semantic"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


async def list_models(request: Request, *, services: Services) -> Reply:
    """List what is served, under all its names."""
    del request
    models = await services.call(_models, services)
    page: ModelList = {
        "object": "list",
        "data": models,
        "has_more": False,
        "first_id": models[0]["id"] if models else None,
        "last_id": models[-1]["id"] if models else None,
    }
    return json_reply(page)


async def get_model(request: Request, *, services: Services) -> Reply:
    """Show one model; unlike a generation, this tells which names exist."""
    name = request.params["model_id"]
    for model in await services.call(_models, services):
        if model["id"] == name:
            return json_reply(model)
    raise ModelNotFound(name)


def _models(services: Services) -> list[ModelObject]:
    cards = {card.id: card for card in _cards(services)}
    models = [_model(card.id, card) for card in cards.values()]
    if cards:
        first = next(iter(cards.values()))
        models += [_model(name, first) for name in services.aliases if name not in cards]
    return models


def _cards(services: Services) -> list[ModelCard]:
    """Return what living workers serve; while none is known, what was last loaded."""
    try:
        pulses = services.pulses.alive()
    except QueueUnavailable:
        pulses = ()
    alive = [pulse.model for pulse in pulses if pulse.model is not None]
    if alive:
        return alive
    recorded = services.log.latest(ModelLoaded.__name__)
    if recorded is None:
        return []
    event = decode_event(recorded.type, recorded.schema_version, recorded.data)
    if not isinstance(event, ModelLoaded):
        return []
    return [
        ModelCard(
            id=event.model,
            fingerprint=event.fingerprint,
            context_length=event.context_length,
            description=event.description,
            created_at=event.created_at,
        )
    ]


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
    """Return a card's instant in UTC; one that cannot be read must not hide the model."""
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        return _EPOCH
    return instant if instant.tzinfo else instant.replace(tzinfo=UTC)
