"""Parsing, limits and validation errors, common to all request bodies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from api.http.json_body import REQUEST, JsonBounds, load_json
from domain.chat.embedding import DIMENSIONS_MAX
from domain.errors import InvalidRequest
from domain.webhook.targets import URL_CHARS_MAX

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


class WebhookBody(RequestBody):
    """The receiver of a POST at the end of the work, signed by the rules of Standard Webhooks."""

    url: Annotated[str, Field(min_length=1, max_length=URL_CHARS_MAX)]


def whole(value: Any) -> Any:  # noqa: ANN401 - anything that JSON holds
    """Return a float without a fraction as an integer, since JSON has one type of number."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


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
Seed = Annotated[int, Field(ge=INT64_MIN, le=INT64_MAX), _Whole]
Answers = Annotated[int, Field(ge=1, le=ANSWERS_MAX), _Whole]
#: Elements of a vector.
Dimensions = Annotated[int, Field(ge=1, le=DIMENSIONS_MAX), _Whole]
TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]
#: Time until a file expires, in seconds.
KeptSeconds = Annotated[int, Field(ge=3600, le=30 * 24 * 3600), _Whole]
StopText = Annotated[str, Field(max_length=STOP_CHARS_MAX)]
StopTexts = Annotated[list[StopText], Field(max_length=STOPS_MAX)]


def parse_body(model: type[BodyT], body: bytes, bounds: JsonBounds = REQUEST) -> BodyT:
    """Return a body as ``model``.

    Raises:
        InvalidRequest: The body is not a JSON object, or a known field is not valid; names the
            first such field.
    """
    value = load_json(body, bounds)
    if not isinstance(value, dict):
        msg = "the body must be a JSON object"
        raise InvalidRequest(msg)
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise _first_fault(error, value) from error


def _first_fault(error: ValidationError, value: Any) -> InvalidRequest:  # noqa: ANN401 - JSON
    """Return the first fault; of those at its place, the one deepest inside the value."""
    faults = [
        (_dotted(fault["loc"], value), fault["msg"])
        for fault in error.errors(include_url=False, include_context=False, include_input=False)
    ]
    first = faults[0][0]
    same_place = [fault for fault in faults if fault[0].startswith(first)]
    path, message = max(same_place, key=lambda fault: fault[0].count("."))
    return InvalidRequest(message, field=path or None)


def _dotted(location: Sequence[int | str], value: Any) -> str:  # noqa: ANN401 - any JSON value
    """Return the path of a field in the body, without the names of union members.

    A part that is no key of the value at that place is the name of a union member. The last part
    may also be a required field that is missing.
    """
    parts: list[str] = []
    for index, part in enumerate(location):
        missing = isinstance(value, dict) and index == len(location) - 1
        if _has(value, part):
            value = value[part]
        elif not missing:
            continue
        parts.append(str(part))
    return ".".join(parts)


def _has(value: Any, part: int | str) -> bool:  # noqa: ANN401 - any JSON value
    if isinstance(value, list):
        return isinstance(part, int) and part < len(value)
    return isinstance(value, dict) and part in value
