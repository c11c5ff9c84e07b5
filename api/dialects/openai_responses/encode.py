"""A response as a JSON object: its members, items and usage."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from api.dialects.compaction import summary_of
from api.dialects.encoding import miss_of, response_logprobs, sign_reasoning
from api.dialects.openai_responses.bodies import (
    CacheDiagnostics,
    CacheMiss,
    ResponseFault,
    ResponseObject,
    ResponseUsage,
)
from api.dialects.openai_responses.compaction import compaction_item
from api.dialects.openai_responses.requested import Item, RequestedFields
from api.dialects.openai_responses.tools import (
    call_item,
    call_prefix,
    is_complete,
)
from api.generation import AssembledAnswer, Block, ending_or_error, job_hex, unix_seconds
from domain.audit.recent_ends import CacheDiagnosis
from domain.chat.divergence import Cause
from domain.chat.items import (
    Finished,
)
from domain.chat.logprobs import TokenLogprob
from domain.errors import (
    EngineFailure,
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
class ResponseEnvelope:
    """The members of a response that are known before its first item.

    Attributes:
        job_id: The job, which gives the response its id.
        created_s: Unix seconds of acceptance.
        diagnosis: What the cache had of the prompt, if the request asks and the prompt is known.
    """

    job_id: JobId
    created_s: int
    requested: RequestedFields
    diagnosis: CacheDiagnosis | None = None

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
    completed_s: int | None = None,
) -> ResponseObject:
    """Return the response object."""
    members: dict[str, Any] = {
        "background": envelope.requested.is_background,
        "error": None if error is None else _fault(error),
        "incomplete_details": None if incomplete is None else {"reason": incomplete},
        "output": [dict(item) for item in output],
        "previous_response_id": envelope.requested.previous,
        "store": envelope.requested.is_stored,
        "usage": None if usage is None else usage_of(usage),
    }
    whole: ResponseObject = {
        "id": envelope.id,
        "object": "response",
        "created_at": envelope.created_s,
        "status": status,
        "completed_at": completed_s,
        **envelope.requested.echo,  # type: ignore[typeddict-item]  # echo has the rest
        **_sampled(envelope),
        **members,
    }
    if envelope.requested.compared is not None:
        compared = JobId(envelope.requested.compared)
        whole["prompt_cache_diagnostics"] = _diagnostics(compared, envelope.diagnosis)
    return whole


def _sampled(envelope: ResponseEnvelope) -> dict[str, float]:
    """Return what the request wants the answer drawn with; neutral values are the model's own."""
    asked = envelope.requested.echo
    neutral = {"temperature": 1.0, "top_p": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
    return neutral | {name: asked[name] for name in neutral if asked.get(name) is not None}


_MISSES: Final[Mapping[Cause, CacheMiss]] = {
    Cause.MODEL_CHANGED: "model_changed",
    Cause.THINKING_TOGGLED: "reasoning_effort_changed",
    Cause.EFFORT_CHANGED: "reasoning_effort_changed",
    Cause.TOOL_ADDED: "tools_changed",
    Cause.TOOL_REMOVED: "tools_changed",
    Cause.TOOL_EDITED: "tools_changed",
    Cause.TOOLS_REORDERED: "tools_changed",
    Cause.SYSTEM_CHANGED: "input_changed",
    Cause.OTHER_CONVERSATION: "input_changed",
    Cause.HISTORY_EDITED: "input_changed",
    Cause.HISTORY_CUT: "input_changed",
    Cause.ANSWER_REWRITTEN: "input_changed",
}


def _diagnostics(compared: JobId, found: CacheDiagnosis | None) -> CacheDiagnostics | None:
    if not compared:
        return {"type": "comparison_response_not_found"}
    if found is None:
        return None
    if found.divergence is None:
        return {"type": "cache_hit"}
    reason = miss_of(found, compared, _MISSES)
    if reason is None:
        return {"type": "unavailable"}
    return {"type": "cache_miss", "reason": reason, "cache_missed_tokens": found.missed_tokens}


def ended_response(envelope: ResponseEnvelope, answer: AssembledAnswer) -> ResponseObject:
    """Return the response object of an answer that has finished or failed."""
    ending = answer.ending
    if ending is None:
        raise TypeError("only an answer that has ended can be assembled")
    end = ending_or_error(ending)
    usage = ending.usage if isinstance(ending, Finished) else None
    if isinstance(end, SemanticError):
        output = []
        if not envelope.requested.is_compaction:
            output = output_items(envelope, answer.blocks, last="incomplete")
        if isinstance(end, GenerationCancelled):
            return response_object(envelope, "cancelled", output=output, usage=usage)
        return response_object(envelope, "failed", output=output, error=end)
    requested = envelope.requested
    if requested.is_compaction and not summary_of(answer):
        fault = EngineFailure("the model wrote no summary")
        return response_object(envelope, "failed", usage=usage, error=fault)
    whole = requested.is_prewarm or requested.is_compaction
    if end.stop_reason in _TRUNCATED and not whole:
        return response_object(
            envelope,
            "incomplete",
            output=output_items(envelope, answer.blocks, last="incomplete"),
            usage=usage,
            incomplete="max_output_tokens",
        )
    if envelope.requested.is_compaction:
        output = [compaction_item(envelope.job_id, summary_of(answer))]
    else:
        output = output_items(envelope, answer.blocks, last="completed")
    completed_s = None if end.at is None else unix_seconds(end.at)
    return response_object(
        envelope, "completed", output=output, usage=usage, completed_s=completed_s
    )


def unfinished_status(envelope: ResponseEnvelope, status: JobStatus) -> ResponseStatus:
    """Return the status of a response that has not ended."""
    is_queued = envelope.requested.is_background and status is JobStatus.QUEUED
    return "queued" if is_queued else "in_progress"


def output_items(
    envelope: ResponseEnvelope, blocks: Sequence[Block], *, last: ItemStatus
) -> list[dict[str, Any]]:
    """Return the blocks of an answer as items.

    Args:
        last: Status of the last item, if it is a text or reasoning.
    """
    compacted = envelope.requested.compacted
    items = [] if compacted is None else [dict(compacted)]
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


def usage_of(usage: Usage) -> ResponseUsage:
    """Return the token counts of a response."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
