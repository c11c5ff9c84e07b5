"""Registered models: for both SDKs, for operators, and as lines that connect clients."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Any, Final, Literal, cast

from typing_extensions import TypedDict  # pydantic reads only this one below Python 3.12

from api.app import App
from api.http.messages import Listing, Request, listing_of
from api.http.operation import Operation, path, text
from domain.errors import ModelNotFound
from domain.model.registry import ModelKind, ModelState, ModelStatus, picker_name
from ops.clients.claude_code import ServedModel
from ops.clients.codex import KEY_NAME
from ops.clients.set_up import client_set_ups
from ops.models.registry import ModelSummaries, ability_summaries, model_summaries

# --- shared --------------------------------------------------------------------------------


class Capability(TypedDict):
    """Whether a model has a capability."""

    supported: bool


class ModelObject(TypedDict):
    """A model, with the fields of both Anthropic and OpenAI."""

    id: str
    object: Literal["model"]
    type: Literal["model"]
    display_name: str
    created: int
    created_at: str
    owned_by: str
    lifecycle: Literal["active"]
    #: In Anthropic's words; whether a model reasons when it is asked to, its template decides.
    capabilities: dict[str, Any]
    description: str
    context_length: int | None
    max_input_tokens: int | None
    #: The name that vLLM gives it, which load generators and routers read.
    max_model_len: int | None
    state: Literal["loaded", "available", "missing", "failed"]
    size_bytes: int | None
    digest: str | None


_MODEL_ID: Final = path("model_id", example="semantic-demo")
_OWNER: Final = "semantic"
#: What a key that sees only its own things reads instead of an error that may name files.
LOAD_FAILED: Final = "its last load failed"


def list_models(app: App, request: Request) -> Listing[ModelObject]:
    """List the names of the registered models, the loaded one first.

    Clients of Anthropic also get the names that Claude Code's picker shows.
    """
    is_anthropic = "anthropic-version" in request.headers
    models = [
        _model(name, model)
        for model in app.model_stock.all()
        for name in _listed_names(model, picked=is_anthropic)
    ]
    return listing_of(models, has_more=False)


def get_model(app: App, request: Request) -> ModelObject:
    """Return one model."""
    name = _MODEL_ID.read(request)
    models = app.model_stock.all()
    for model in models:
        if name in _names(model):
            return _model(name, model)
    raise ModelNotFound(name, known=tuple(model.entry.name for model in models))


def list_registered_models(app: App, request: Request) -> ModelSummaries:
    """List the registered models with their states.

    Sources, directories and errors of loads have paths of this machine; a key that sees only what
    is its own gets the name of the model instead.
    """
    models = app.model_stock.all()
    page = model_summaries(models, app.model_stock.registry().following)
    if request.caller.sees is not None:
        for one in page["data"]:
            one["source"], one["directory"] = one["name"], None
            one["failure"] = None if one["failure"] is None else LOAD_FAILED
    return page


def _names(model: ModelStatus) -> tuple[str, ...]:
    return (model.entry.name, *model.entry.aliases, picker_name(model.entry.name))


def _listed_names(model: ModelStatus, *, picked: bool) -> tuple[str, ...]:
    is_chat = model.entry.kind is ModelKind.CHAT
    names = _names(model) if picked and is_chat else _names(model)[:-1]
    return tuple(dict.fromkeys(names))


_EFFORTS: Final = ("low", "medium", "high", "xhigh", "max")


def _capabilities(model: ModelStatus) -> dict[str, Any]:
    """Return what requests to a model may ask for: what is false is a 400.

    ``engine`` has what the engine does for them: what is false makes them slower.
    """
    has = Capability(supported=model.entry.kind is ModelKind.CHAT)
    lacks = Capability(supported=False)
    return {
        "batch": has,
        "citations": lacks,
        "code_execution": lacks,
        "compaction": {**has, "summarize": has},
        "context_management": {
            **has,
            "clear_thinking_20251015": has,
            "clear_tool_uses_20250919": has,
            "compact_20260112": has,
        },
        "effort": {**has, **dict.fromkeys(_EFFORTS, has)},
        "engine": _engine_capabilities(model),
        "image_input": Capability(supported=model.files is not None and model.files.sees),
        "pdf_input": lacks,
        "server_tools": {"supported": False, "code_execution": lacks, "web_search": lacks},
        "structured_outputs": has,
        "thinking": {
            **has,
            "types": {"adaptive": has, "between_tools": lacks, "disabled": has, "enabled": has},
        },
    }


def _engine_capabilities(model: ModelStatus) -> dict[str, Any] | None:
    abilities = ability_summaries(model)
    if abilities is None:
        return None
    engine = cast("dict[str, dict[str, Any]]", abilities)
    return {name: {"supported": one["degree"] != "no", **one} for name, one in engine.items()}


def _model(name: str, model: ModelStatus) -> ModelObject:
    card, files, created = model.card, model.files, model.written_at
    return {
        "id": name,
        "object": "model",
        "type": "model",
        "display_name": name,
        "created": int(created.timestamp()),
        "created_at": created.isoformat().replace("+00:00", "Z"),
        "owned_by": _OWNER,
        "lifecycle": "active",
        "capabilities": _capabilities(model),
        "description": f"The model {model.entry.name}." if card is None else card.description,
        "context_length": model.context_length,
        "max_input_tokens": model.context_length,
        "max_model_len": model.context_length,
        "state": model.state.value,
        "size_bytes": None if files is None else files.size_bytes,
        "digest": model.digest,
    }


MODEL_OPERATIONS: Final = (
    Operation("GET /v1/models", list_models),
    Operation("GET /v1/models/{model_id}", get_model, parameters=(_MODEL_ID,)),
    Operation("GET /admin/models", list_registered_models),
)


#: Headers that carry a key.
_KEY_HEADERS: Final = ("x-api-key", "authorization")
_DEFAULT_HOST: Final = "127.0.0.1:8000"
#: No character of a host or an address has a meaning in a shell, in TOML or in Python.
_HOST: Final = re.compile(r"[A-Za-z0-9.:\[\]_-]{1,255}")
_NAME: Final = "[A-Za-z0-9._-]{1,255}"
#: An IPv6 address with all its parts, or that of loopback: any text of the pattern is valid.
_IPV6: Final = r"\[([0-9A-Fa-f]{1,4}(:[0-9A-Fa-f]{1,4}){7}|::1)\]"
_BASE_URL: Final = text(
    "base_url",
    "address of the service as the client sees it; by default that of the request",
    pattern=rf"^https?://({_NAME}|{_IPV6})(:[0-9]{{1,5}})?(/[A-Za-z0-9._~-]{{1,64}}){{0,8}}$",
)


class ClientLines(TypedDict):
    """Lines to paste for one client; ``note`` names their place."""

    id: str
    title: str
    note: str
    language: Literal["shell", "python", "toml"]
    code: str


class ClientList(TypedDict):
    """Lines to paste for every client.

    ``model`` is the loaded model, or the one that is loaded next. ``key_variable`` is the variable
    from which the lines read the key; ``null`` where they need none.
    """

    object: Literal["list"]
    data: list[ClientLines]
    base_url: str
    model: str
    context_length: int | None
    key_variable: str | None


def list_clients(app: App, request: Request) -> ClientList:
    """Return lines to paste that connect clients to this service."""
    models = app.model_stock.all()
    model = _served(models)
    base_url = _BASE_URL.read(request) or f"http://{_host(request)}"
    keyed = any(name in request.headers for name in _KEY_HEADERS)
    return {
        "object": "list",
        "data": [
            cast("ClientLines", {**asdict(one), "language": one.language.value})
            for one in client_set_ups(base_url, model, keyed=keyed)
        ],
        "base_url": base_url,
        "model": model.id,
        "context_length": model.context_length,
        "key_variable": KEY_NAME if keyed else None,
    }


def _host(request: Request) -> str:
    host = request.headers.get("host", "")
    return host if _HOST.fullmatch(host) else _DEFAULT_HOST


def _served(models: tuple[ModelStatus, ...]) -> ServedModel:
    loaded = [model for model in models if model.state is ModelState.LOADED]
    first = (loaded or models)[0]
    return ServedModel(first.entry.name, first.context_length)


CLIENT_OPERATIONS: Final = (Operation("GET /admin/clients", list_clients, parameters=(_BASE_URL,)),)
