"""``POST /tokenize`` and ``/detokenize``, in the forms of vLLM and of llama.cpp's server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final, Literal, TypeVar

from pydantic import Field
from typing_extensions import TypedDict  # pydantic reads only this one below Python 3.12

from api.app import App
from api.dialects.generate import run_count
from api.dialects.openai_chat.bodies import ChatMessage, FunctionTool, TemplateOptions
from api.dialects.openai_chat.parse import parse as parse_chat
from api.dialects.openai_completions import Ids
from api.http.bodies import Items, Name, VendorBody
from api.http.messages import Access, Request
from api.http.operation import Operation, body_of
from domain.chat.request import ChatRequest, RawPrompt, canonical_json
from domain.errors import InvalidRequest
from domain.job.prepare_prompt import PromptTokens
from domain.values import SamplingWish

#: Name of the model in a request without one; the loaded model reads whatever is named.
_LOADED: Final = "loaded"
BodyT = TypeVar("BodyT", "TokenizeBody", "DetokenizeBody")


class TokenizeBody(VendorBody):
    """A text, ``prompt`` at vLLM and ``content`` at llama.cpp, or the messages of a chat.

    The model's beginning token is put before a ``prompt``, and before a ``content`` on request.
    """

    model: Name | None = None
    prompt: str | None = None
    add_special_tokens: bool | None = None
    content: str | None = None
    add_special: bool | None = None
    parse_special: Literal[True] | None = None
    messages: Annotated[Items[ChatMessage], Field(min_length=1)] | None = None
    tools: Items[FunctionTool] | None = None
    chat_template_kwargs: TemplateOptions | None = None
    add_generation_prompt: Literal[True] | None = None
    continue_final_message: Literal[False] | None = None
    chat_template: None = None
    return_token_strs: Literal[False] | None = None
    with_pieces: Literal[False] | None = None


class DetokenizeBody(VendorBody):
    """Token ids."""

    model: Name | None = None
    tokens: Ids


class TokenIds(TypedDict):
    """The reply of ``POST /tokenize``."""

    tokens: list[int]
    count: int


class TokenText(TypedDict):
    """The reply of ``POST /detokenize``: the same text under the names of both servers."""

    prompt: str
    content: str


def _tokens_request(wire: TokenizeBody, app: App) -> ChatRequest:
    given = [name for name in ("prompt", "content", "messages") if getattr(wire, name) is not None]
    if len(given) != 1:
        msg = "the body must have one of prompt, content and messages"
        raise InvalidRequest(msg, field=given[1] if given else "prompt")
    if wire.messages is not None:
        chat = {"messages", "tools", "chat_template_kwargs"}
        body = wire.model_dump(mode="json", include=chat, exclude_unset=True)
        return parse_chat(
            canonical_json(body | {"model": wire.model or _LOADED}), {}, app.defaults
        ).chat
    if wire.prompt is not None:
        return _raw(wire, RawPrompt(text=wire.prompt, is_begun=wire.add_special_tokens is False))
    return _raw(wire, RawPrompt(text=wire.content or "", is_begun=not wire.add_special))


def _text_request(wire: DetokenizeBody, app: App) -> ChatRequest:
    del app
    return _raw(wire, RawPrompt(ids=tuple(wire.tokens), is_echoed=True))


def _raw(wire: TokenizeBody | DetokenizeBody, raw: RawPrompt) -> ChatRequest:
    return ChatRequest(
        model=wire.model or _LOADED,
        messages=(),
        raw=raw,
        max_tokens=0,
        sampling=SamplingWish(seed=0),
    )


async def _read(
    app: App,
    request: Request,
    body: type[BodyT],
    request_of: Callable[[BodyT, App], ChatRequest],
) -> PromptTokens:
    def read() -> PromptTokens:
        wire = body_of(body, request)
        if wire.model is not None:
            app.registry().bind(wire.model, embeds=False)
        return app.counter.read(request_of(wire, app))

    return await run_count(app, request, read)


async def tokenize(app: App, request: Request) -> TokenIds:
    """Return the token ids of a text or of a chat."""
    found = await _read(app, request, TokenizeBody, _tokens_request)
    return {"tokens": list(found.ids), "count": len(found.ids)}


async def detokenize(app: App, request: Request) -> TokenText:
    """Return the text of token ids."""
    found = await _read(app, request, DetokenizeBody, _text_request)
    return {"prompt": found.text, "content": found.text}


TOKEN_OPERATIONS: Final = tuple(
    Operation(
        f"POST {prefix}/{endpoint.__name__}",
        endpoint,
        id=f"{endpoint.__name__}{suffix}",
        body=body,
        example=example,
        reply=reply,
        access=Access.READ,
        responses={429: "Too many texts wait to be read"},
    )
    for prefix, suffix in (("", ""), ("/v1", "V1"))
    for endpoint, body, example, reply in (
        (tokenize, TokenizeBody, {"prompt": "Good morning."}, TokenIds),
        (detokenize, DetokenizeBody, {"tokens": [40, 41]}, TokenText),
    )
)
