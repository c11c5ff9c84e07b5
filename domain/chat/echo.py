"""Whether a turn that a client sends back is an answer that was given, though its bytes differ.

Clients do not echo what they were sent: they write the arguments of a call in another order, with
other numbers of the same value and with defaults filled in, they drop texts of white space, and
some drop the reasoning. Such an echo means the same, so the tokens that the model really sampled
may stand for it. What a client changed on purpose must not be undone: then the turn is new text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from domain.chat.generation import EmittedCall
from domain.chat.request import Message, ToolCall
from domain.chat.stored_answer import StoredAnswer
from domain.values import Digest, JobId, StopReason

#: Ends after which the sampled tokens are the turn, no more and no less.
WHOLE: Final = frozenset({StopReason.END_TURN, StopReason.MAX_TOKENS})
#: What clients put in place of arguments that are no JSON.
_UNPARSED_KEYS: Final = ("unparsed", "__unparsedToolInput")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedAnswer:
    """An answer as the log has it.

    Attributes:
        job_id: Whose it is.
        request: Digest of the request that it answers.
        fingerprint: What the model computed with; the ids mean nothing to another one.
        answer: The answer, with its token ids.
    """

    job_id: JobId
    request: Digest
    fingerprint: str
    answer: StoredAnswer

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


def _is_same_call(echoed: ToolCall, said: EmittedCall) -> bool:
    if echoed.name != said.name or (echoed.id and echoed.id != said.id):
        return False
    try:
        arguments = json.loads(said.arguments or "{}")
    except ValueError:
        return _carries_raw(echoed.arguments, said.arguments)
    return _holds(echoed.arguments, arguments)


def _holds(echoed: object, said: object) -> bool:
    """Whether ``echoed`` is ``said``, perhaps with defaults that mean nothing filled in."""
    if isinstance(said, Mapping) and isinstance(echoed, Mapping):
        extra = (value for key, value in echoed.items() if key not in said)
        return all(
            key in echoed and _holds(echoed[key], value) for key, value in said.items()
        ) and (all(_says_nothing(value) for value in extra))
    if isinstance(said, list | tuple) and isinstance(echoed, list | tuple):
        return len(said) == len(echoed) and all(map(_holds, echoed, said))
    if isinstance(said, bool) or isinstance(echoed, bool):
        return said is echoed
    return said == echoed


def _says_nothing(value: object) -> bool:
    # ``0 == False``: a number that was filled in is a choice, a false flag is none.
    return value is None or value is False or value in ("", [], {})


def _carries_raw(echoed: Mapping[str, Any], raw: str) -> bool:
    for key in _UNPARSED_KEYS:
        if key in echoed:
            kept = echoed[key]
            return bool((kept.get("raw") if isinstance(kept, Mapping) else kept) == raw)
    return False
