"""The answer of a job as the payload table keeps it, and its only codec."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from domain.chat.embedding import Vectors
from domain.chat.generation import EmittedCall, Outcome
from domain.chat.logprobs import TokenLogprob, from_json, to_json
from domain.chat.request import canonical_json


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredAnswer:
    """The answer of one job, over all its attempts.

    Attributes:
        text: The visible text, without the stop text.
        thinking: The reasoning.
        calls: The tool calls, in order.
        token_ids: All generated ids, without stop tokens; ``None`` in payloads of older programs.
        logprobs: Of the tokens of ``text``; ``None`` where the request asks for none.
        vectors: Of a request for vectors, which has no text.
    """

    text: str
    thinking: str = ""
    calls: tuple[EmittedCall, ...] = ()
    token_ids: tuple[int, ...] | None = None
    logprobs: tuple[TokenLogprob, ...] | None = None
    vectors: Vectors | None = None

    @classmethod
    def from_outcome(cls, outcome: Outcome) -> StoredAnswer:
        """Return the answer of a generation that has ended."""
        return cls(
            text=outcome.text,
            thinking=outcome.thinking,
            calls=outcome.calls,
            token_ids=outcome.token_ids,
            logprobs=outcome.logprobs,
            vectors=outcome.vectors,
        )

    def to_bytes(self) -> bytes:
        """Return the canonical JSON form, whose digest the last event of the job names."""
        fields: dict[str, object] = {
            "text": self.text,
            "thinking": self.thinking,
            "tool_calls": [asdict(call) for call in self.calls],
        }
        if self.token_ids is not None:
            fields["token_ids"] = list(self.token_ids)
        if self.logprobs is not None:
            fields["logprobs"] = to_json(self.logprobs)
        if self.vectors is not None:
            fields["vectors"] = self.vectors.to_json()
        return canonical_json(fields)

    @classmethod
    def from_bytes(cls, payload: bytes) -> StoredAnswer:
        """Return the answer that ``to_bytes`` wrote, in this version or an older one.

        Older payloads lack keys, which take their defaults. Unknown keys are ignored.

        Raises:
            ValueError: The payload is no JSON, or its log-probabilities are malformed.
            KeyError: It has no text.
        """
        data = json.loads(payload)
        ids, logprobs = data.get("token_ids"), data.get("logprobs")
        vectors = data.get("vectors")
        return cls(
            text=data["text"],
            thinking=data.get("thinking", ""),
            calls=tuple(_call(call) for call in data.get("tool_calls", ())),
            token_ids=None if ids is None else tuple(ids),
            logprobs=None if logprobs is None else from_json(logprobs),
            vectors=None if vectors is None else Vectors.from_json(vectors),
        )


def _call(data: Mapping[str, Any]) -> EmittedCall:
    # A payload without the mark holds only calls that came to their end.
    return EmittedCall(
        id=data["id"],
        name=data["name"],
        arguments=data["arguments"],
        is_complete=data.get("is_complete", True),
    )
