"""Prompts that continue the previous prompt and its sampled answer token for token.

A conversation that is rendered anew does not start with the tokens that the model has computed and
sampled: an echoed call has other bytes, templates drop old reasoning, and a tokenizer splits a
text differently than the model did. So a turn's prompt is composed::

    tokens(turn n) = tokens(turn n-1) + sampled(turn n-1) + encode(text after that answer)

The result depends on the request and the log alone, so every attempt of a job gets the same
prompt, also after a restart. Where a link is missing (an erased or edited answer, another model, a
template that cannot be split) the whole request is rendered.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock
from typing import Final, Protocol, TypeAlias

from domain.chat.divergence import RecordedAnswer, is_echo
from domain.chat.ports import RecordedAnswers
from domain.chat.request import ChatRequest, unattributed
from domain.values import Digest, JobId, PromptEncoding, digest_of
from worker.engine.ports import RenderedPrompt

#: Upper bound for the cached prompts, in bytes.
PROMPTS_BYTES_MAX: Final = 64 << 20
#: Turns that a prompt is composed from; a longer conversation with no cached turn among the last
#: ones is rendered whole.
TURNS_MAX: Final = 1000
#: Assistant turns, from the end of a conversation, that are checked for a recorded answer.
TURNS_CHECKED_MAX: Final = 8

#: Of a rendered prompt: the digest of its request, and how its newest turn was encoded.
_Name: TypeAlias = tuple[Digest, PromptEncoding]


class Renderer(Protocol):
    """Renders requests; ``PromptRenderer`` is one."""

    def render(self, request: ChatRequest, encoding: PromptEncoding) -> RenderedPrompt:
        """Return the prompt as the template writes it; raises ``InvalidRequest``."""
        ...

    def has_only_messages(self, request: ChatRequest) -> bool:
        """Whether the prompt holds no instruction besides the messages."""
        ...

    def shares_preamble(self, before: ChatRequest, request: ChatRequest) -> bool:
        """Whether both prompts have the same text before the messages, given the same tools."""
        ...

    def render_after(
        self, request: ChatRequest, turn: int, encoding: PromptEncoding
    ) -> RenderedPrompt | None:
        """Return the prompt's end after an assistant turn, ``None`` if it cannot be split there."""
        ...


@dataclass(frozen=True, slots=True)
class _Link:
    """An answer that a request echoes, and the request that it answered."""

    turn: int
    answer: RecordedAnswer
    before: ChatRequest


@dataclass(frozen=True, slots=True)
class _CachedPrompt:
    """A rendered prompt.

    Attributes:
        ids: Its tokens, packed as uint32; ``rest`` has none.
    """

    request: ChatRequest
    ids: array[int]
    rest: RenderedPrompt
    size_bytes: int

    @property
    def rendered(self) -> RenderedPrompt:
        return self.rest._replace(tokens=tuple(self.ids))


class IncrementalPrompts:
    """Renders requests so that each prompt starts with the cached prefix of the turn before it.

    May be called from many threads at once.

    Args:
        fingerprint: Of the loaded model; tokens sampled by other models are not used.
    """

    def __init__(
        self,
        renderer: Renderer,
        answers: RecordedAnswers,
        fingerprint: str,
        bytes_max: int = PROMPTS_BYTES_MAX,
    ) -> None:
        self._renderer = renderer
        self._answers = answers
        self._fingerprint = fingerprint
        self._bytes_max = bytes_max
        self._lock = Lock()
        self._bytes = 0
        self._cached: OrderedDict[_Name, _CachedPrompt] = OrderedDict()

    def render(
        self, request: ChatRequest, encoding: PromptEncoding = PromptEncoding.MARKS_AS_TEXT
    ) -> RenderedPrompt:
        """Return the prompt.

        Args:
            encoding: How its own text is encoded; an earlier turn keeps the encoding that it had
                when it was answered.

        Raises:
            InvalidRequest: The template refuses the messages.
        """
        if request.raw is not None:
            # A raw prompt is encoded as given, and no other prompt continues it.
            return self._renderer.render(request, encoding)
        # From the newest turn back to a cached prompt, or to the start of the conversation.
        chain: list[tuple[_Name, ChatRequest, _Link | None]] = []
        newest, payload = request, request.to_bytes()
        name = (digest_of(payload), encoding)
        while (cached := self._find(name)) is None and len(chain) < TURNS_MAX:
            link = self._find_link(request)
            chain.append((name, request, link))
            if link is None:
                break
            name, request = (link.answer.request, link.answer.encoding), link.before
        rendered = cached.rendered if cached is not None else None
        for name, one, link in reversed(chain):
            rendered = self._append_turn(rendered, one, link, name[1]) or self._renderer.render(
                one, name[1]
            )
            # The newest request is already serialised; it is long, and this path is hot.
            size = len(payload if one is newest else one.to_bytes())
            self._remember(name, one, rendered, size)
        assert rendered is not None, "the newest turn is in the chain or cached"
        return rendered

    def _append_turn(
        self,
        before: RenderedPrompt | None,
        request: ChatRequest,
        link: _Link | None,
        encoding: PromptEncoding,
    ) -> RenderedPrompt | None:
        if before is None or link is None:
            return None
        after = self._renderer.render_after(request, link.turn, encoding)
        if after is None:
            return None
        answered = (*before.tokens, *link.answer.token_ids)
        return after._replace(
            tokens=(*answered, *after.tokens),
            message_starts=before.message_starts,
            last_message=len(answered) + after.last_message,
        )

    def _find_link(self, request: ChatRequest) -> _Link | None:
        """Return the newest recorded answer in a conversation that the prompt can continue."""
        checked = 0
        for number in range(len(request.messages) - 2, -1, -1):
            turn = request.messages[number]
            if not turn.origin:
                continue
            if (checked := checked + 1) > TURNS_CHECKED_MAX:
                return None
            answer = self._answers.find(JobId(turn.origin))
            if (
                answer is None
                or answer.fingerprint != self._fingerprint
                or not is_echo(turn, answer.answer)
            ):
                continue
            before = self._request((answer.request, answer.encoding))
            if (
                before is not None
                and _is_prefix(before, request, number)
                and self._renderer.shares_preamble(before, request)
                and self._renderer.has_only_messages(before)
            ):
                return _Link(number, answer, before)
        return None

    def _request(self, name: _Name) -> ChatRequest | None:
        cached = self._find(name)
        return cached.request if cached is not None else self._answers.request(name[0])

    def _find(self, name: _Name) -> _CachedPrompt | None:
        with self._lock:
            cached = self._cached.get(name)
            if cached is not None:
                self._cached.move_to_end(name)
            return cached

    def _remember(
        self, name: _Name, request: ChatRequest, rendered: RenderedPrompt, request_bytes: int
    ) -> None:
        ids = array("I", rendered.tokens)
        size = request_bytes + ids.itemsize * len(ids)
        with self._lock:
            if name not in self._cached and size <= self._bytes_max:
                rest = rendered._replace(tokens=())
                self._cached[name] = _CachedPrompt(request, ids, rest, size)
                self._bytes += size
            while self._bytes > self._bytes_max:
                self._bytes -= self._cached.popitem(last=False)[1].size_bytes


def _is_prefix(before: ChatRequest, request: ChatRequest, turns: int) -> bool:
    """Whether an earlier request has exactly the first ``turns`` messages of a conversation."""
    return (
        before.raw is None
        and len(before.messages) == turns
        and before.tools == request.tools
        and unattributed(before.messages) == unattributed(request.messages[:turns])
    )
