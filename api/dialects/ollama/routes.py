"""Ollama's API on the jobs and models of the other dialects."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from api.app import App
from api.dialects.embeddings import EmbeddingBody, answer_vectors, floats_of, parse_request
from api.dialects.generate import USER_TURN, answer_open, generation
from api.dialects.ollama.bodies import (
    API_VERSION,
    OllamaChat,
    OllamaChatBody,
    OllamaDetails,
    OllamaEmbedBody,
    OllamaEmbeddingsBody,
    OllamaGenerateBody,
    OllamaGenerated,
    OllamaLoadedModels,
    OllamaModels,
    OllamaNamed,
    OllamaShowBody,
    OllamaShown,
    OllamaVector,
    OllamaVectors,
    OllamaVersion,
)
from api.dialects.ollama.encode import (
    GenerationKind,
    LineEncoder,
    ReplyForm,
    chat_members,
    figures,
    generate_members,
)
from api.dialects.ollama.parse import TAG, of_model, parse_chat, parse_generate
from api.generation import ParsedRequest
from api.http.messages import Access, Reply, Request, StreamReply
from api.http.operation import Operation, body_of
from api.submit import open_answer
from domain.chat.embedding import Vectors
from domain.errors import InvalidRequest, ModelNotFound
from domain.job.state import Job
from domain.model.registry import ModelKind, ModelState, ModelStatus
from domain.values import rfc3339

#: A stream is JSON objects, one a line.
LINES: Final = "application/x-ndjson"

CHAT: Final = GenerationKind(protocol="ollama-chat", parse=parse_chat, members=chat_members)
GENERATE: Final = GenerationKind(
    protocol="ollama-generate", parse=parse_generate, members=generate_members
)
#: No client's time ends the stay of a model.
_NEVER: Final = "9999-12-31T23:59:59Z"
_CAPABILITIES: Final[Mapping[ModelKind, tuple[str, ...]]] = {
    ModelKind.CHAT: ("completion", "tools", "thinking"),
    ModelKind.EMBEDDING: ("embedding",),
}
#: Paths by which Ollama's clients manage models, and the commands that do so here.
_MANAGED: Final[Mapping[str, str]] = {
    "pull": "semantic models pull NAME",
    "create": "semantic models add NAME SOURCE",
    "copy": "semantic models add NAME SOURCE --alias NAME",
    "delete": "semantic models rm NAME",
    "push": "semantic models ls shows where the files are",
    "blobs": "semantic models add NAME SOURCE",
}


async def generate(app: App, request: Request, kind: GenerationKind) -> Reply | StreamReply:
    """Answer a turn or a prompt; a stream, unless the request forbids it."""

    def parse() -> ParsedRequest:
        parsed = kind.parse(request.body, request.headers, app.defaults)
        return of_model(parsed, app.registry())

    parsed, job = await open_answer(app, parse, request, protocol=kind.protocol)
    form = ReplyForm(
        kind=kind,
        model=parsed.chat.model,
        request=request,
        clock=app.clock,
        is_load=parsed.chat.max_tokens == 0,
    )
    reply = await answer_open(
        job,
        app,
        stream=parsed.stream,
        encoder=lambda *_: LineEncoder(form),
        assemble=lambda _job, answer, _diagnosis: form.whole(answer),
    )
    return replace(reply, content_type=LINES) if isinstance(reply, StreamReply) else reply


async def ollama_embed(app: App, request: Request) -> Reply:
    """Return the vectors of texts in Ollama's format."""

    def reply(view: Job, vectors: Vectors) -> OllamaVectors:
        counted = figures(request, view.usage)
        return {
            "model": view.submitted.model,
            "embeddings": [floats_of(vector) for vector in vectors.each()],
            "total_duration": counted["total_duration"],
            "load_duration": counted["load_duration"],
            "prompt_eval_count": counted["prompt_eval_count"],
        }

    return await answer_vectors(app, request, partial(_texts, app, request), reply)


def _texts(app: App, request: Request) -> ParsedRequest:
    wire = body_of(OllamaEmbedBody, request)
    body = EmbeddingBody(model=wire.model, input=wire.input, dimensions=wire.dimensions)
    return of_model(replace(parse_request(body), unknown=wire.unknown), app.registry())


async def ollama_embeddings(app: App, request: Request) -> Reply:
    """Return the vector of one text in Ollama's older format."""

    def reply(view: Job, vectors: Vectors) -> OllamaVector:
        del view
        return {"embedding": floats_of(next(iter(vectors.each())))}

    return await answer_vectors(app, request, partial(_prompt, app, request), reply)


def _prompt(app: App, request: Request) -> ParsedRequest:
    wire = body_of(OllamaEmbeddingsBody, request)
    body = EmbeddingBody(model=wire.model, input=wire.prompt)
    return of_model(replace(parse_request(body), unknown=wire.unknown), app.registry())


def managed_by(path: str) -> str | None:
    """Return the command in place of a path that manages models."""
    first, _, rest = path.removeprefix("/").partition("/")
    return _MANAGED.get(rest.partition("/")[0]) if first == "api" else None


def ollama_tags(app: App, request: Request) -> OllamaModels:
    """List the registered models in Ollama's format.

    Each stands under all its names, the loaded one first.
    """
    del request
    models = app.model_stock.all()
    return {
        "models": [
            {
                **_named(name, model),
                "modified_at": rfc3339(model.written_at),
                "capabilities": list(_CAPABILITIES[model.entry.kind]),
            }
            for name, model in _names(models)
        ]
    }


def ollama_loaded(app: App, request: Request) -> OllamaLoadedModels:
    """List the loaded models in Ollama's format."""
    del request
    models = app.model_stock.all()
    return {
        "models": [
            {
                **(named := _named(model.entry.name, model)),
                "expires_at": _NEVER,
                "size_vram": named["size"],
                "context_length": model.context_length or 0,
            }
            for model in models
            if model.state is ModelState.LOADED
        ]
    }


def ollama_show(app: App, request: Request) -> OllamaShown:
    """Return one model in Ollama's format."""
    body = body_of(OllamaShowBody, request)
    wanted = body.model or body.name
    if not wanted:
        raise InvalidRequest("name the model", field="model")
    models = app.model_stock.all()
    by_name = dict(_names(models))
    model = by_name.get(wanted) or by_name.get(wanted.removesuffix(TAG))
    if model is None:
        raise ModelNotFound(wanted, known=tuple(one.entry.name for one in models))
    return _shown(model)


async def ollama_version(app: App, request: Request) -> OllamaVersion:
    """Return the version of Ollama whose API this is."""
    del app, request
    return {"version": API_VERSION}


def _names(models: tuple[ModelStatus, ...]) -> Iterator[tuple[str, ModelStatus]]:
    for model in models:
        for name in dict.fromkeys((model.entry.name, *model.entry.aliases)):
            yield name, model


def _named(name: str, model: ModelStatus) -> OllamaNamed:
    known = f"{model.digest or ''}\n{model.entry.name}\n{model.entry.source}"
    return {
        "name": name,
        "model": name,
        "size": 0 if model.files is None else model.files.size_bytes,
        # 64 hexadecimal digits, of which clients cut twelve; without a load, of the names alone.
        "digest": hashlib.sha256(known.encode()).hexdigest(),
        "details": _details(model),
    }


def _shown(model: ModelStatus) -> OllamaShown:
    family = _family(model)
    info: dict[str, Any] = {
        "general.architecture": family,
        "general.basename": model.entry.name,
    }
    if model.context_length is not None:
        info[f"{family}.context_length"] = model.context_length
    return {
        "modelfile": "",
        "parameters": "",
        "template": "",
        "details": _details(model),
        "model_info": info,
        "capabilities": list(_CAPABILITIES[model.entry.kind]),
        "modified_at": rfc3339(model.written_at),
    }


def _details(model: ModelStatus) -> OllamaDetails:
    family = _family(model)
    return {
        "parent_model": "",
        "format": "safetensors",
        "family": family,
        "families": [family],
        "parameter_size": "",
        "quantization_level": "",
    }


def _family(model: ModelStatus) -> str:
    return (model.files.family if model.files is not None else "") or "unknown"


OLLAMA_OPERATIONS: Final = (
    generation(
        "POST /api/chat",
        partial(generate, kind=CHAT),
        id="ollamaChat",
        summary="Generate a turn in Ollama's format",
        body=OllamaChatBody,
        example={"model": "semantic-demo", "messages": [USER_TURN], "options": {"num_predict": 32}},
        reply=OllamaChat,
        media=LINES,
    ),
    generation(
        "POST /api/generate",
        partial(generate, kind=GENERATE),
        id="ollamaGenerate",
        summary="Generate an answer to a prompt in Ollama's format",
        body=OllamaGenerateBody,
        example={
            "model": "semantic-demo",
            "prompt": USER_TURN["content"],
            "options": {"num_predict": 32},
        },
        reply=OllamaGenerated,
        media=LINES,
    ),
    generation(
        "POST /api/embed",
        ollama_embed,
        body=OllamaEmbedBody,
        example={"model": "notes", "input": ["Bees dance.", "Cells divide."]},
        reply=OllamaVectors,
    ),
    generation(
        "POST /api/embeddings",
        ollama_embeddings,
        body=OllamaEmbeddingsBody,
        example={"model": "notes", "prompt": "Bees dance."},
        reply=OllamaVector,
    ),
    Operation("GET /api/tags", ollama_tags),
    Operation("GET /api/ps", ollama_loaded),
    Operation(
        "POST /api/show",
        ollama_show,
        body=OllamaShowBody,
        example={"model": "semantic-demo"},
        access=Access.READ,
        responses={404: "No model has this name; the message lists those that exist"},
    ),
    Operation("GET /api/version", ollama_version),
)
