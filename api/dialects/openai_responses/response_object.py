"""The response object of OpenAI Responses and its items."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from api.answer import AssembledAnswer, Block, ending_or_error, job_hex
from api.dialects.logprobs import response_logprobs
from api.dialects.openai_responses.bodies import ResponseFault, ResponseObject, ResponseUsage
from api.dialects.openai_responses.items import (
    Item,
    ToolKinds,
    call_item,
    call_prefix,
    is_complete,
)
from api.dialects.reasoning_signature import sign_reasoning
from domain.chat.items import Finished
from domain.chat.logprobs import TokenLogprob
from domain.errors import (
    GenerationCancelled,
    InvalidRequest,
    Overloaded,
    PromptTooLong,
    SemanticError,
)
from domain.values import JobId, JobStatus, StopReason, Usage

PROTOCOL: Final = "openai-responses"
ItemStatus = Literal["in_progress", "completed", "incomplete"]
ResponseStatus = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]

_TRUNCATED: Final = frozenset({StopReason.MAX_TOKENS, StopReason.CONTEXT_WINDOW})


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedFields:
    """Fields of a request that the log stores and the response object repeats.

    Attributes:
        items: The input.
        previous: Id of the previous response.
        is_stored: Whether the response can be retrieved later.
        is_background: Whether the response goes on without a connection.
        is_signed: Whether ``encrypted_content`` carries the reasoning.
        kinds: Kinds of the tools; see ``ResponseTools``.
        echo: Members of the response object that only repeat the request.
    """

    items: tuple[Item, ...]
    previous: str | None
    is_stored: bool
    is_background: bool
    is_signed: bool
    kinds: ToolKinds
    echo: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseEnvelope:
    """The members of a response that are known before its first item.

    Attributes:
        job_id: The job, which gives the response its id.
        created_s: Unix seconds of acceptance.
        requested: The stored fields of the request.
    """

    job_id: JobId
    created_s: int
    requested: RequestedFields

    @property
    def id(self) -> str:
        """The id of the response."""
        return response_id(self.job_id)


def response_id(job_id: JobId) -> str:
    """Return the id of the response of a job."""
    return f"resp_{job_hex(job_id)}"


def response_object(
    envelope: ResponseEnvelope,
    status: ResponseStatus,
    *,
    output: Sequence[Item] = (),
    usage: Usage | None = None,
    error: SemanticError | None = None,
    incomplete: str | None = None,
) -> ResponseObject:
    """Return the response object.

    Args:
        envelope: Members that are known before the first item.
        usage: Token counts, if they are known.
        error: The error of a failed response.
        incomplete: The reason of an incomplete response.
    """
    members: dict[str, Any] = {
        "background": envelope.requested.is_background,
        "error": None if error is None else _fault(error),
        "incomplete_details": None if incomplete is None else {"reason": incomplete},
        "output": [dict(item) for item in output],
        "previous_response_id": envelope.requested.previous,
        "store": envelope.requested.is_stored,
        "usage": None if usage is None else _usage(usage),
    }
    whole: ResponseObject = {
        "id": envelope.id,
        "object": "response",
        "created_at": envelope.created_s,
        "status": status,
        **envelope.requested.echo,  # type: ignore[typeddict-item]  # echo has the rest
        **members,
    }
    return whole


def ended_response(envelope: ResponseEnvelope, answer: AssembledAnswer) -> ResponseObject:
    """Return the response object of an answer that has finished or failed."""
    ending = answer.ending
    if ending is None:
        msg = "only an answer that has ended can be assembled"
        raise TypeError(msg)
    end = ending_or_error(ending)
    usage = ending.usage if isinstance(ending, Finished) else None
    if isinstance(end, SemanticError):
        output = output_items(envelope, answer.blocks, last="incomplete")
        if isinstance(end, GenerationCancelled):
            return response_object(envelope, "cancelled", output=output, usage=usage)
        return response_object(envelope, "failed", output=output, error=end)
    if end.stop_reason in _TRUNCATED:
        return response_object(
            envelope,
            "incomplete",
            output=output_items(envelope, answer.blocks, last="incomplete"),
            usage=usage,
            incomplete="max_output_tokens",
        )
    output = output_items(envelope, answer.blocks, last="completed")
    return response_object(envelope, "completed", output=output, usage=usage)


def unfinished_status(envelope: ResponseEnvelope, status: JobStatus) -> ResponseStatus:
    """Return the status of a response that has not ended."""
    is_queued = envelope.requested.is_background and status is JobStatus.QUEUED
    return "queued" if is_queued else "in_progress"


def output_items(
    envelope: ResponseEnvelope, blocks: Sequence[Block], *, last: ItemStatus
) -> list[dict[str, Any]]:
    """Return the blocks of an answer as items.

    Args:
        envelope: Members of the response.
        last: Status of the last item, if it is a text or reasoning.
    """
    items = []
    for index, block in enumerate(blocks):
        status: ItemStatus = last if index == len(blocks) - 1 else "completed"
        if block.kind == "tool":
            status = "completed" if is_complete(block, envelope.requested.kinds) else "incomplete"
        items.append(output_item(envelope, blocks[: index + 1], status))
    return items


def output_item(
    envelope: ResponseEnvelope, blocks: Sequence[Block], status: ItemStatus
) -> dict[str, Any]:
    """Return the last block as an item."""
    block = blocks[-1]
    number = item_number(blocks)
    item_id = output_item_id(envelope, blocks)
    if block.kind == "text":
        content = [text_part(block.text, block.logprobs)] if status != "in_progress" else []
        return {
            "id": item_id,
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": content,
        }
    if block.kind == "thinking":
        content = [reasoning_part(block.text)] if status != "in_progress" else []
        item = {"id": item_id, "type": "reasoning", "summary": [], "content": content}
        if envelope.requested.is_signed and status != "in_progress":
            signature = sign_reasoning(envelope.job_id, number, block.text, carried=True)
            item["encrypted_content"] = signature
        return item | {"status": status}
    return call_item(block, envelope.requested.kinds, item_id, status)


def item_number(blocks: Sequence[Block]) -> int:
    """Return the number of earlier blocks of the last block's kind."""
    kind = blocks[-1].kind
    return sum(block.kind == kind for block in blocks) - 1


def output_item_id(envelope: ResponseEnvelope, blocks: Sequence[Block]) -> str:
    """Return the id of the last block's item."""
    block = blocks[-1]
    prefix = {"text": "msg", "thinking": "rs"}.get(block.kind)
    if prefix is None:
        prefix = call_prefix(block, envelope.requested.kinds)
    return f"{prefix}_{job_hex(envelope.job_id)}_{item_number(blocks)}"


def text_part(text: str, logprobs: Iterable[TokenLogprob]) -> dict[str, Any]:
    """Return the content part of a message."""
    return {
        "type": "output_text",
        "text": text,
        "annotations": [],
        "logprobs": response_logprobs(logprobs),
    }


def reasoning_part(text: str) -> dict[str, Any]:
    """Return the content part of reasoning."""
    return {"type": "reasoning_text", "text": text}


def find_item(items: Iterable[Item], item_id: str) -> Item | None:
    """Return the item with an id."""
    return next((item for item in items if item["id"] == item_id), None)


def _fault(error: SemanticError) -> ResponseFault:
    code = "server_error"
    if isinstance(error, PromptTooLong):
        # The specification has no code for this; clients know this one.
        code = "context_length_exceeded"
    elif isinstance(error, InvalidRequest):
        code = "invalid_prompt"
    elif isinstance(error, Overloaded):
        code = "rate_limit_exceeded"
    return {"code": code, "message": error.message}


def _usage(usage: Usage) -> ResponseUsage:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
