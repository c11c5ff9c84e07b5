"""Registered models: ``/v1/models`` for both SDKs, ``/admin/models`` for operators."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from api.app import App
from api.http.messages import Reply, Request
from api.http.operation import Operation
from api.http.parameters import path
from api.http.replies import json_reply
from api.schemas.replies import ModelList, ModelObject
from domain.model.inventory import ModelStatus
from domain.not_found import ModelNotFound
from ops.models.summary import ModelSummaries, model_summaries

_MODEL_ID: Final = path("model_id", example="semantic-demo")
_OWNER: Final = "semantic"
#: What a key that sees only its own things reads instead of an error that may name files.
LOAD_FAILED: Final = "its last load failed"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


async def list_models(app: App, request: Request) -> Reply:
    """List the registered models, each under all its names, the loaded one first."""
    del request
    models = [
        _model(name, model)
        for model in await app.call(app.model_stock.all)
        for name in _names(model)
    ]
    page: ModelList = {
        "object": "list",
        "data": models,
        "has_more": False,
        "first_id": models[0]["id"] if models else None,
        "last_id": models[-1]["id"] if models else None,
    }
    return json_reply(page)


async def get_model(app: App, request: Request) -> Reply:
    """Return one model by its name or an alias."""
    name = _MODEL_ID.read(request)
    models = await app.call(app.model_stock.all)
    for model in models:
        if name in _names(model):
            return json_reply(_model(name, model))
    raise ModelNotFound(name, known=tuple(model.entry.name for model in models))


async def list_registered_models(app: App, request: Request) -> Reply:
    """List the registered models with their states, and the patterns that follow the loaded one.

    Sources, directories and errors of loads have paths of this machine; a key that sees only what
    is its own gets the name of the model instead.
    """
    models = await app.call(app.model_stock.all)
    page = model_summaries(models, app.model_stock.registry().following)
    if request.caller.sees is not None:
        for one in page["data"]:
            one["source"], one["directory"] = one["name"], None
            one["failure"] = None if one["failure"] is None else LOAD_FAILED
    return json_reply(page)


def _names(model: ModelStatus) -> tuple[str, ...]:
    return (model.entry.name, *model.entry.aliases)


def _model(name: str, model: ModelStatus) -> ModelObject:
    card, files = model.card, model.files
    created = _EPOCH if files is None else files.written_at
    created = created if card is None else _instant(card.created_at)
    created = created.replace(microsecond=0)
    return {
        "id": name,
        "object": "model",
        "type": "model",
        "display_name": name,
        "created": int(created.timestamp()),
        "created_at": created.isoformat().replace("+00:00", "Z"),
        "owned_by": _OWNER,
        "lifecycle": "active",
        "description": f"The model {model.entry.name}." if card is None else card.description,
        "context_length": model.context_length,
        "max_input_tokens": model.context_length,
        "state": model.state.value,
        "size_bytes": None if files is None else files.size_bytes,
        "digest": model.digest,
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
        summary="List the names of the registered models, the loaded one first",
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
    Operation(
        "GET /admin/models",
        list_registered_models,
        id="listRegisteredModels",
        summary="List the registered models with their states",
        reply=ModelSummaries,
    ),
)
