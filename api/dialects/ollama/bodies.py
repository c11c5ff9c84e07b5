"""Bodies and replies of Ollama's API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, NotRequired

from pydantic import BeforeValidator, Field
from typing_extensions import TypedDict  # pydantic reads only this one below Python 3.12

from api.dialects.embeddings import InputText, InputTexts
from api.dialects.encoding import ResponseLogprob
from api.dialects.openai_chat.bodies import FunctionTool, TopLogprobs
from api.http.bodies import (
    INT64_MAX,
    INT64_MIN,
    Dimensions,
    Items,
    Name,
    RequestBody,
    SamplingBody,
    Seed,
    StopText,
    StopTexts,
    Unsupported,
    VendorBody,
    whole,
)

#: The version of Ollama whose API this is; some clients refuse an older one.
API_VERSION: Final = "0.33.0"

#: -1 and other values below 1 for no limit.
NumPredict = Annotated[int, Field(ge=INT64_MIN, le=INT64_MAX), BeforeValidator(whole)]
#: Samplers that this service lacks; only the values that switch them off are valid.
ShareOff = Annotated[float, Field(ge=1, le=1)]
ModeOff = Annotated[int, Field(ge=0, le=0), BeforeValidator(whole)]


class OllamaOptions(SamplingBody):
    """The ``options`` of a request; those of the vendor's loader have no effect."""

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    seed: Seed | None = None
    num_predict: NumPredict | None = None
    stop: StopText | StopTexts | None = None
    tfs_z: ShareOff | None = None
    typical_p: ShareOff | None = None
    mirostat: ModeOff | None = None
    penalize_newline: Literal[True] | None = None


class OllamaBody(VendorBody):
    """The fields of every request; an operator decides how long a model stays loaded."""

    model: Name
    keep_alive: Any = None
    options: OllamaOptions | None = None

    @property
    def is_unload(self) -> bool:
        """Whether the model is to be unloaded at once."""
        kept = self.keep_alive
        is_text = isinstance(kept, str) and "0" in kept
        return kept == 0 or (is_text and not kept.strip("0.hmsun"))


class OllamaGenerationBody(OllamaBody):
    """The fields of both generations."""

    stream: bool | None = None
    format: Literal["", "json"] | dict[str, Any] | None = None
    think: bool | Literal["low", "medium", "high", "max"] | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
    debug_render_only: Annotated[Literal[False] | None, Field(alias="_debug_render_only")] = None


class OllamaFunction(RequestBody):
    """The function of an earlier call."""

    name: str
    arguments: dict[str, Any] | None = None


class OllamaCall(RequestBody):
    """A call of an earlier turn."""

    id: str | None = None
    function: OllamaFunction


class OllamaMessage(RequestBody):
    """One turn; the result of a tool names its call, or the tool."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None
    images: Items[Any] | None = None
    tool_calls: Items[OllamaCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class OllamaChatBody(OllamaGenerationBody):
    """The body of ``POST /api/chat``; without messages it loads the model."""

    messages: Items[OllamaMessage] | None = None
    tools: Items[FunctionTool] | None = None


class OllamaGenerateBody(OllamaGenerationBody):
    """The body of ``POST /api/generate``; without a prompt it loads the model."""

    prompt: str | None = None
    system: str | None = None
    suffix: str | None = None
    raw: bool | None = None
    template: str | None = None
    context: Items[Any] | None = None
    images: Items[Any] | None = None
    width: Unsupported = None
    height: Unsupported = None
    steps: Unsupported = None


class OllamaEmbedBody(OllamaBody):
    """The body of ``POST /api/embed``. A text that is too long is refused, never truncated."""

    input: InputText | InputTexts
    truncate: bool | None = None
    dimensions: Dimensions | None = None


class OllamaEmbeddingsBody(OllamaBody):
    """The body of ``POST /api/embeddings``."""

    prompt: InputText


class OllamaShowBody(VendorBody):
    """The body of ``POST /api/show``; older clients send ``name``."""

    model: Annotated[str, Field(max_length=256)] | None = None
    name: Annotated[str, Field(max_length=256)] | None = None


# --- replies -------------------------------------------------------------------------------


class OllamaFigures(TypedDict, total=False):
    """Token counts, and durations in nanoseconds.

    ``load_duration`` ends when the job is accepted, ``prompt_eval_duration`` at the first output:
    it contains the time in the queue and that of a load.
    """

    total_duration: int
    load_duration: int
    prompt_eval_count: int
    prompt_eval_duration: int
    eval_count: int
    eval_duration: int


class OllamaEnd(OllamaFigures):
    """Members of both generations; a line before the last has no figures."""

    model: str
    created_at: str
    done: bool
    done_reason: NotRequired[Literal["stop", "length", "load"]]
    logprobs: NotRequired[list[ResponseLogprob]]


class OllamaCalledFunction(TypedDict):
    """A called function."""

    index: int
    name: str
    arguments: dict[str, Any]


class OllamaToolCall(TypedDict):
    """A call; clients send its result behind it."""

    id: str
    function: OllamaCalledFunction


class OllamaTurn(TypedDict):
    """The message of an answer, or a piece of it."""

    role: Literal["assistant"]
    content: str
    thinking: NotRequired[str]
    tool_calls: NotRequired[list[OllamaToolCall]]


class OllamaChat(OllamaEnd):
    """The reply of ``POST /api/chat``, or a line of it."""

    message: OllamaTurn


class OllamaGenerated(OllamaEnd):
    """The reply of ``POST /api/generate``, or a line of it."""

    response: str
    thinking: NotRequired[str]


class OllamaVectors(TypedDict):
    """The reply of ``POST /api/embed``, in the order of the texts."""

    model: str
    embeddings: list[Sequence[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class OllamaVector(TypedDict):
    """The reply of ``POST /api/embeddings``."""

    embedding: Sequence[float]


class OllamaDetails(TypedDict):
    """What the files of a model are."""

    parent_model: str
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class OllamaNamed(TypedDict):
    """A registered model under one of its names."""

    name: str
    model: str
    size: int
    digest: str
    details: OllamaDetails


class OllamaModel(OllamaNamed):
    """A registered model."""

    modified_at: str
    capabilities: list[str]


class OllamaModels(TypedDict):
    """The registered models, the loaded one first."""

    models: list[OllamaModel]


class OllamaLoaded(OllamaNamed):
    """A loaded model; no client's time ends its stay."""

    expires_at: str
    size_vram: int
    context_length: int


class OllamaLoadedModels(TypedDict):
    """The loaded models."""

    models: list[OllamaLoaded]


class OllamaShown(TypedDict):
    """The reply of ``POST /api/show``."""

    modelfile: str
    parameters: str
    template: str
    details: OllamaDetails
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: str


class OllamaVersion(TypedDict):
    """The version of Ollama whose API this is."""

    version: str
