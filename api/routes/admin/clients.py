"""``/admin/clients``: lines to paste that connect clients to this service."""

from __future__ import annotations

import re
from typing import Final, Literal, cast

from typing_extensions import TypedDict  # pydantic reads only this one below Python 3.12

from api.app import App
from api.http.messages import Reply, Request
from api.http.operation import Operation
from api.http.parameters import text
from api.http.replies import json_reply
from domain.model.inventory import ModelState, ModelStatus
from ops.clients.claude_code import ServedModel
from ops.clients.set_up import KEY_NAME, client_set_ups

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


async def list_clients(app: App, request: Request) -> Reply:
    """Return lines to paste for every client, with the address that this request used."""
    models = await app.call(app.model_stock.all)
    model = _served(models)
    base_url = _BASE_URL.read(request) or f"http://{_host(request)}"
    keyed = any(name in request.headers for name in _KEY_HEADERS)
    body: ClientList = {
        "object": "list",
        "data": [
            cast(
                "ClientLines",
                {
                    "id": one.id,
                    "title": one.title,
                    "note": one.note,
                    "language": one.language.value,
                    "code": one.code,
                },
            )
            for one in client_set_ups(base_url, model, keyed=keyed)
        ],
        "base_url": base_url,
        "model": model.id,
        "context_length": model.context_length,
        "key_variable": KEY_NAME if keyed else None,
    }
    return json_reply(body)


def _host(request: Request) -> str:
    host = request.headers.get("host", "")
    return host if _HOST.fullmatch(host) else _DEFAULT_HOST


def _served(models: tuple[ModelStatus, ...]) -> ServedModel:
    loaded = [model for model in models if model.state is ModelState.LOADED]
    first = (loaded or models)[0]
    return ServedModel(first.entry.name, first.context_length)


CLIENT_OPERATIONS: Final = (
    Operation(
        "GET /admin/clients",
        list_clients,
        id="listClients",
        summary="Return lines to paste that connect clients to this service",
        parameters=(_BASE_URL,),
        reply=ClientList,
    ),
)
