"""JSON bodies within bounds, and the types and errors that all request bodies share."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from itertools import islice
from typing import Annotated, Any, Final, TypeVar, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError

from domain.chat.embedding import DIMENSIONS_MAX
from domain.errors import InvalidRequest
from domain.values import SAMPLING_NAMES, SamplingOptions
from domain.webhook.targets import URL_CHARS_MAX

#: Bytes that are examined between two chances for other threads.
_SLICE_BYTES: Final = 32_768
#: All bytes but quotes, what stands before a key or a value, and the ends of objects.
_OTHERS: Final = bytes(byte for byte in range(256) if byte not in b'",:[{}')


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonBounds:
    """Most values of a JSON text.

    Attributes:
        values_max: Values of any kind, and keys.
        containers_max: Arrays and objects, which take the most time and memory.
    """

    values_max: int
    containers_max: int


#: A request: a prompt of 2^18 token ids, or some 15,000 messages with one block each.
REQUEST: Final = JsonBounds(values_max=300_000, containers_max=50_000)
#: A Message Batch of up to 100,000 requests.
BATCH: Final = JsonBounds(values_max=4_000_000, containers_max=1_000_000)


def check_values(body: bytes, bounds: JsonBounds) -> None:
    """Refuse a text of too many values.

    Other threads run only at the ends of objects while a text is parsed, so ``REQUEST`` also bounds
    the values between two ends of objects.

    Raises:
        InvalidRequest: With the bound that is exceeded.
    """
    if len(body) <= REQUEST.containers_max:
        return
    values = containers = run_values = run_containers = 0
    for marks in _marks(body):
        for index, part in enumerate(marks.split(b"}")):
            if index:
                run_values = run_containers = 0
            opened = part.count(b"[") + part.count(b"{")
            met = opened + part.count(b",") + part.count(b":")
            values, containers = values + met, containers + opened
            run_values, run_containers = run_values + met, run_containers + opened
            _require(run_values, run_containers, REQUEST)
            _require(values, containers, bounds)


def _require(values: int, containers: int, bounds: JsonBounds) -> None:
    if containers > bounds.containers_max:
        raise InvalidRequest(f"the body has more than {bounds.containers_max} arrays and objects")
    if values > bounds.values_max:
        raise InvalidRequest(f"the body has more than {bounds.values_max} keys and values")


def _marks(body: bytes) -> Iterator[bytes]:
    """Yield what ``_OTHERS`` leaves outside of strings, slice by slice."""
    start, inside = 0, False
    while start < len(body):
        end = _slice_end(body, start)
        piece, start = body[start:end], end
        if b"\\" in piece:
            piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
        parts = piece.translate(None, _OTHERS).split(b'"')
        yield b"".join(parts[inside::2])
        inside ^= len(parts) % 2 == 0


def _slice_end(body: bytes, start: int) -> int:
    """Return the end of a slice that does not divide an escape."""
    piece = body[start : start + _SLICE_BYTES]
    backslashes = len(piece) - len(piece.rstrip(b"\\"))
    return start + len(piece) + backslashes % 2


#: Levels of objects and arrays in a body. Real tool schemas stay below 20; the limit keeps every
#: recursive walk behind it far from the interpreter's own limit.
NESTING_MAX: Final = 64

_MAYBE_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def load_json(body: bytes | str, bounds: JsonBounds = REQUEST) -> Any:  # noqa: ANN401 - any JSON value
    """Return the JSON value of ``body``.

    Raises:
        InvalidRequest: It is not UTF-8, not JSON, nested too deep, of too many values, names a key
            twice, or holds a number or text that no JSON reader agrees on (NaN, infinities, lone
            surrogates).
    """
    raw = body if isinstance(body, bytes) else body.encode("utf-8", "surrogatepass")
    check_values(raw, bounds)
    try:
        value = json.loads(
            body.decode("utf-8") if isinstance(body, bytes) else body,
            object_pairs_hook=_object,
            parse_constant=_refuse_constant,
            parse_float=_finite,
        )
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"the body is not UTF-8 (byte {error.start})") from error
    except RecursionError as error:
        raise InvalidRequest(_too_deep()) from error
    except ValueError as error:
        # Also an integer of more digits than the interpreter converts.
        raise InvalidRequest(f"the body is not valid JSON: {error}") from error
    _check_depth(value)
    if _MAYBE_SURROGATE.search(raw):
        _check_text(value)
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) == len(pairs):
        return members
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            raise InvalidRequest(f"the key {key!a} stands twice in one object")
        seen.add(key)
    raise AssertionError  # fewer members than pairs means a repeated key


def _refuse_constant(name: str) -> float:
    raise InvalidRequest(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if math.isfinite(number):
        return number
    raise InvalidRequest(f"the number {text[:32]} is too large")


def _check_depth(value: Any) -> None:  # noqa: ANN401 - any JSON value
    level = [value]
    for _ in range(NESTING_MAX):
        level = [child for node in level for child in _containers(node)]
        if not level:
            return
    raise InvalidRequest(_too_deep())


def _containers(node: Any) -> list[Any]:  # noqa: ANN401 - any JSON value
    children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    return [child for child in children if isinstance(child, dict | list)]


def _check_text(value: Any) -> None:  # noqa: ANN401 - any JSON value
    """Refuse halves of surrogate pairs, which no tokeniser and no UTF-8 writer can take."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        msg = "the body holds half of a surrogate pair (an unpaired \\ud800 to \\udfff escape)"
        raise InvalidRequest(msg) from error


def _too_deep() -> str:
    return f"the body is nested deeper than {NESTING_MAX} levels"


#: Characters of a model name or an id.
NAME_CHARS_MAX: Final = 256
#: Stop texts of one request, and characters of each.
STOPS_MAX: Final = 64
STOP_CHARS_MAX: Final = 1024
#: Larger values are lowered to this; clients send the largest value that a vendor allows. The
#: engine lowers it further to the space that is left in the context.
MAX_TOKENS_CEILING: Final = 1 << 20
#: Answers to one prompt in one request.
ANSWERS_MAX: Final = 8
#: Candidates of top-k; more than any vocabulary has.
TOP_K_CEILING: Final = 1 << 20
INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1
#: Name that a client gives an agent.
NAME_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._:@/-]{0,255}$"
#: Stands in the names of session agents (``api.access.ownership``), and in no name of a client.
SESSION_MARK: Final = "~"
#: Name of an agent or of a stream that a client looks up.
KNOWN_NAME_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._:@/~-]{0,255}$"
JOB_ID_PATTERN: Final = r"^job-[0-9a-f]{32}$"
WEBHOOK_ID_PATTERN: Final = r"^webhook-[0-9a-f]{32}$"

T = TypeVar("T")
BodyT = TypeVar("BodyT", bound="RequestBody")
#: A list of which the first fault is reported, since a list of all faults takes seconds.
Items = Annotated[list[T], Field(fail_fast=True)]


class RequestBody(BaseModel):
    """A body, or an object inside one; known fields are validated, unknown ones are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _release_interpreter(cls, value: Any) -> Any:  # noqa: ANN401 - any JSON value
        """Return the value. Other threads run between two objects only where Python code runs."""
        return value


#: Most unknown fields that are named: the search for a similar name takes a millisecond.
UNKNOWN_MAX: Final = 16
#: Likeness to a known name, from 0 to 1, from which an unknown one is taken for a misspelt one.
_MISSPELT: Final = 0.8


class VendorBody(RequestBody):
    """A body in the form of a vendor, or its sampling; knows what of it has no effect."""

    _unknown: tuple[str, ...] = PrivateAttr(())

    @property
    def unknown(self) -> tuple[str, ...]:
        """The fields that are not known here, each with the known one of a similar name."""
        return self._unknown

    def note_unknown(self, value: Mapping[str, Any]) -> None:
        """Note the fields of the body as it came, and of the objects that it holds directly."""
        self._unknown = tuple(islice(_unknown_fields(self, value), UNKNOWN_MAX))


def without_effect(fields: Sequence[str]) -> str | None:
    """Return the warning that names the fields without effect; ``None`` if there are none."""
    return f"fields without effect: {', '.join(fields)}" if fields else None


def _unknown_fields(body: RequestBody, value: Mapping[str, Any], place: str = "") -> Iterator[str]:
    known = {field.alias or key: key for key, field in type(body).model_fields.items()}
    for name, member in value.items():
        if name not in known:
            near = get_close_matches(name[:NAME_CHARS_MAX], known, 1, _MISSPELT)
            yield f"{place}{name[:NAME_CHARS_MAX]}" + (
                f" (did you mean {place}{near[0]}?)" if near else ""
            )
        elif isinstance(member, dict) and isinstance(
            inside := getattr(body, known[name]), RequestBody
        ):
            yield from _unknown_fields(inside, member, f"{place}{name}.")


class NativeBody(RequestBody):
    """A body of this service's own API, or an object inside one; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")


#: Longest wait for ``start_after``: 400 days.
START_AFTER_MAX_S: Final = 400 * 24 * 3600


def instant_of(text: str) -> datetime:
    """Return an RFC 3339 instant.

    Raises:
        ValueError: The text is none, or names no offset.
    """
    if _RFC_3339.fullmatch(text) is None:
        raise ValueError(NOT_AN_INSTANT)
    return datetime.fromisoformat(text.upper()).astimezone(UTC)


#: The refusal of a text that is no instant.
NOT_AN_INSTANT: Final = "must be an RFC 3339 instant such as 2026-01-31T12:00:00Z"
_RFC_3339: Final = re.compile(
    r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)", re.ASCII
)


def _start_after(value: Any) -> datetime | float:  # noqa: ANN401 - anything that JSON holds
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and 0 <= value <= START_AFTER_MAX_S:
        return float(value)
    if isinstance(value, str):
        with suppress(ValueError, OverflowError):
            return instant_of(value)
    msg = f"{NOT_AN_INSTANT}, or seconds from 0 to {START_AFTER_MAX_S}"
    raise PydanticCustomError("start_after", msg)


#: When work may start: an RFC 3339 instant, or seconds from now.
StartAfter = Annotated[
    datetime | Annotated[float, Field(ge=0, le=START_AFTER_MAX_S, allow_inf_nan=False)],
    BeforeValidator(_start_after),
]


class WebhookBody(NativeBody):
    """The receiver of a POST at the end of the work, signed by the rules of Standard Webhooks."""

    url: Annotated[str, Field(min_length=1, max_length=URL_CHARS_MAX)]


def whole(value: Any) -> Any:  # noqa: ANN401 - anything that JSON holds
    """Return a float without a fraction as an integer, since JSON has one type of number."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _refuse(value: Any) -> None:  # noqa: ANN401 - anything that JSON holds
    """Return ``None``; any other value is an error.

    Claude Code takes these words for a beta that the service lacks, and repeats without the field.
    """
    if value is not None:
        kind, words = "unsupported", "Extra inputs are not permitted: the service lacks this field"
        raise PydanticCustomError(kind, words)


#: A vendor's field that changes the answer and that this service cannot follow; only null is valid.
Unsupported = Annotated[None, BeforeValidator(_refuse)]


#: Limits of the ``metadata`` of the vendor's objects: pairs, and characters of each.
PAIRS_MAX: Final = 16
KEY_CHARS_MAX: Final = 64
VALUE_CHARS_MAX: Final = 512
Pairs = Annotated[
    dict[
        Annotated[str, Field(max_length=KEY_CHARS_MAX)],
        Annotated[str, Field(max_length=VALUE_CHARS_MAX)],
    ],
    Field(max_length=PAIRS_MAX),
]

# The validator is last, so that the schema of the number has the limits.
_Whole = BeforeValidator(whole)
Name = Annotated[str, Field(min_length=1, max_length=NAME_CHARS_MAX)]
MaxTokens = Annotated[int, Field(ge=1), _Whole]
#: With 0 the prompt is read into the cache, and the answer is empty.
MaxTokensOrZero = Annotated[int, Field(ge=0), _Whole]
#: Reasoning tokens; a budget larger than the answer has no effect.
Budget = Annotated[int, Field(ge=0), _Whole]
TopP = Annotated[float, Field(ge=0, le=1)]
TopK = Annotated[int, Field(ge=0), _Whole]
MinP = Annotated[float, Field(ge=0, lt=1)]
#: Entries of a ``logit_bias``.
BIASES_MAX: Final = 1024
BiasPattern = Annotated[str, Field(pattern=r"^[0-9]{1,9}$")]
LogitBias = Annotated[
    dict[BiasPattern, Annotated[float, Field(ge=-100, le=100)]], Field(max_length=BIASES_MAX)
]
Penalty = Annotated[float, Field(ge=-2, le=2)]
RepetitionPenalty = Annotated[float, Field(gt=0, le=10)]
#: A window of tokens; 0 for all.
Window = Annotated[int, Field(ge=0, le=2**31 - 1), _Whole]
#: The same as llama.cpp names it: -1 for all, 0 for none.
LastTokens = Annotated[int, Field(ge=-1, le=2**31 - 1), _Whole]
Seed = Annotated[int, Field(ge=INT64_MIN, le=INT64_MAX), _Whole]
Answers = Annotated[int, Field(ge=1, le=ANSWERS_MAX), _Whole]
#: Elements of a vector.
Dimensions = Annotated[int, Field(ge=1, le=DIMENSIONS_MAX), _Whole]
TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]
#: Time until a file expires, in seconds.
KeptSeconds = Annotated[int, Field(ge=3600, le=30 * 24 * 3600), _Whole]
StopText = Annotated[str, Field(max_length=STOP_CHARS_MAX)]
StopTexts = Annotated[list[StopText], Field(max_length=STOPS_MAX)]


class SamplingBody(VendorBody):
    """How tokens are drawn, in every dialect; the temperature's range differs.

    ``repetition_penalty`` and ``repetition_context_size`` have the names of llama.cpp and Ollama
    too: ``repeat_penalty`` and ``repeat_last_n``.
    """

    top_p: TopP | None = None
    top_k: TopK | None = None
    min_p: MinP | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: RepetitionPenalty | None = None
    repetition_context_size: Window | None = None
    repeat_penalty: RepetitionPenalty | None = None
    repeat_last_n: LastTokens | None = None
    logit_bias: LogitBias | None = None
    xtc_probability: Annotated[float, Field(ge=0, le=1)] | None = None
    xtc_threshold: Annotated[float, Field(ge=0, le=0.5)] | None = None

    @property
    def sampling(self) -> SamplingOptions:
        """Return the options that the body sets."""
        given = {name: getattr(self, name, None) for name in SAMPLING_NAMES}
        if given["top_k"] is not None:
            given["top_k"] = min(given["top_k"], TOP_K_CEILING)
        if self.logit_bias is not None:
            biases = ((int(token), bias) for token, bias in self.logit_bias.items())
            given["logit_bias"] = tuple(sorted(biases))
        if self.repetition_penalty is None:
            given["repetition_penalty"] = self.repeat_penalty
        if self.repetition_context_size is None and self.repeat_last_n is not None:
            given["repetition_context_size"] = max(0, self.repeat_last_n)
            if self.repeat_last_n == 0:
                given["repetition_penalty"] = 1.0
        return SamplingOptions(**given)


def parse_body(model: type[BodyT], body: bytes, bounds: JsonBounds = REQUEST) -> BodyT:
    """Return a body as ``model``.

    Raises:
        InvalidRequest: The body is not a JSON object, or a field is not valid or, in a
            ``NativeBody``, not known; names the first such field, and one with a similar name.
    """
    value = load_json(body, bounds)
    if not isinstance(value, dict):
        raise InvalidRequest("the body must be a JSON object")
    try:
        wire = model.model_validate(value)
    except ValidationError as error:
        raise _first_fault(error, value, model) from error
    if isinstance(wire, VendorBody):
        wire.note_unknown(value)
    return wire


_EXTRA: Final = "extra_forbidden"


def _first_fault(error: ValidationError, value: Any, model: type[BaseModel]) -> InvalidRequest:  # noqa: ANN401 - JSON
    """Return the first fault; of those at its place, the one deepest inside the value.

    An unknown field comes before a missing one: it may be the other with a wrong name.
    """
    found = error.errors(include_url=False, include_context=False, include_input=False)
    if found[0]["type"] == "missing":
        place = found[0]["loc"][:-1]
        found.sort(key=lambda one: one["type"] != _EXTRA or one["loc"][:-1] != place)
    faults = [
        (
            _dotted(fault["loc"], value, is_missing=fault["type"] == "missing"),
            _unknown(fault["loc"], model) if fault["type"] == _EXTRA else fault["msg"],
        )
        for fault in found
    ]
    first = faults[0][0]
    same_place = [fault for fault in faults if fault[0].startswith(first)]
    path, message = max(same_place, key=lambda fault: fault[0].count("."))
    return InvalidRequest(message, field=path or None)


def _unknown(location: Sequence[int | str], model: type[BaseModel]) -> str:
    """Return the refusal of an unknown field, with the known one whose name is nearest."""
    *place, name = location
    models = {model}
    for part in place:  # parts that are no fields are indexes, keys and names of union members
        inside = {
            found
            for one in models
            for key, field in one.model_fields.items()
            if part in {key, field.alias}
            for found in _models_in(field.annotation)
        }
        models = inside or models
    names = {field.alias or key for one in models for key, field in one.model_fields.items()}
    near = get_close_matches(str(name), sorted(names), 1)
    if near:
        return f"there is no such field; did you mean {near[0]}?"
    return f"there is no such field; known are {', '.join(sorted(names))}"


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:  # noqa: ANN401 - any annotation
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)


def _dotted(location: Sequence[int | str], value: Any, *, is_missing: bool) -> str:  # noqa: ANN401 - any JSON value
    """Return the path of a field in the body, without the names of union members.

    A part that is no key of the value at that place is the name of a union member, but for the
    last part of a required field that is missing.
    """
    parts: list[str] = []
    for index, part in enumerate(location):
        if _has(value, part):
            value = value[part]
        elif not is_missing or index < len(location) - 1:
            continue
        parts.append(str(part))
    return ".".join(parts)


def _has(value: Any, part: int | str) -> bool:  # noqa: ANN401 - any JSON value
    if isinstance(value, list):
        return isinstance(part, int) and part < len(value)
    return isinstance(value, dict) and part in value
