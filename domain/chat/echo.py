"""Whether an assistant turn of a request is an earlier answer, although its bytes differ.

Clients do not return an answer byte for byte: they reorder the arguments of a call, rewrite numbers
of the same value, fill in defaults, drop texts of white space, and some drop the reasoning. Such an
echo has the same meaning, so the sampled tokens may replace it in the prompt. An edit with another
meaning must be kept: then the turn is new text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from domain.chat.generation import EmittedCall
from domain.chat.request import Message, ToolCall
from domain.chat.stored_answer import StoredAnswer
from domain.values import Digest, JobId, PromptEncoding, StopReason

#: Stop reasons after which the sampled tokens are exactly the turn.
WHOLE: Final = frozenset({StopReason.END_TURN, StopReason.MAX_TOKENS})
#: Keys under which clients return arguments that are no JSON.
_UNPARSED_KEYS: Final = ("unparsed", "__unparsedToolInput")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedAnswer:
    """A complete answer in the log.

    Attributes:
        request: Digest of the request that it answers.
        fingerprint: Fingerprint of the model; the token ids are valid for this model only.
        answer: The answer, with its token ids.
        encoding: How the prompt was encoded that it answers.
    """

    job_id: JobId
    request: Digest
    fingerprint: str
    answer: StoredAnswer
    encoding: PromptEncoding = PromptEncoding.MARKS_AS_TEXT

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The sampled ids, without stop tokens."""
        assert self.answer.token_ids is not None, "an answer without ids is not recorded"
        return self.answer.token_ids


def is_echo(turn: Message, answer: StoredAnswer) -> bool:
    """Whether an assistant turn is an echo of an answer."""
    if _bare(turn.content) != _bare(answer.text):
        return False
    if turn.reasoning and _bare(turn.reasoning) != _bare(answer.thinking):
        return False
    return len(turn.tool_calls) == len(answer.calls) and all(
        _is_same_call(echoed, call)
        for echoed, call in zip(turn.tool_calls, answer.calls, strict=True)
    )


def _bare(text: str) -> str:
    return "".join(text.split())


def _is_same_call(echoed: ToolCall, emitted: EmittedCall) -> bool:
    if echoed.name != emitted.name or (echoed.id and echoed.id != emitted.id):
        return False
    try:
        arguments = json.loads(emitted.arguments or "{}")
    except ValueError:
        return _carries_raw(echoed.arguments, emitted.arguments)
    return _matches(echoed.arguments, arguments)


def _matches(echoed: object, emitted: object) -> bool:
    """Whether ``echoed`` equals ``emitted``, apart from empty defaults that were filled in."""
    if isinstance(emitted, Mapping) and isinstance(echoed, Mapping):
        extra = (value for key, value in echoed.items() if key not in emitted)
        return all(
            key in echoed and _matches(echoed[key], value) for key, value in emitted.items()
        ) and all(_is_empty(value) for value in extra)
    if isinstance(emitted, list | tuple) and isinstance(echoed, list | tuple):
        return len(emitted) == len(echoed) and all(map(_matches, echoed, emitted))
    if isinstance(emitted, bool) or isinstance(echoed, bool):
        return emitted is echoed
    return emitted == echoed


def _is_empty(value: object) -> bool:
    # ``0 == False``: a filled-in zero is a value, a filled-in false flag is none.
    return value is None or value is False or value in ("", [], {})


def _carries_raw(echoed: Mapping[str, Any], raw: str) -> bool:
    for key in _UNPARSED_KEYS:
        if key in echoed:
            kept = echoed[key]
            return bool((kept.get("raw") if isinstance(kept, Mapping) else kept) == raw)
    return False
