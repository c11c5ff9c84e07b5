"""Prompts that go on where the answer before them ended, token for token.

Rendered anew, a conversation would not begin with the tokens that the model has read and sampled:
an echoed call has other bytes, templates drop old reasoning, and a tokenizer cuts a text otherwise
than the model did. So the prompt of a turn is the prompt of the turn before, then the tokens that
were sampled, then what the template puts behind them::

    tokens(turn n) = tokens(turn n-1) + sampled(turn n-1) + encode(what follows that answer)

It is a function of the request and the log alone, so each attempt at a job reads the same prompt,
after a restart too. Where a link is missing (erased, edited, another model, a template that cannot
be cut) the rest is rendered as it stands.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock
from typing import Final, Protocol

from domain.chat.echo import RecordedAnswer, is_echo
from domain.chat.ports import RecordedAnswers
from domain.chat.request import ChatRequest, unattributed
from domain.values import Digest, JobId, digest_of
from worker.engine.ports import RenderedPrompt

#: What the remembered prompts may take.
PROMPTS_BYTES_MAX: Final = 64 << 20
#: Turns that a prompt is followed back over; a longer conversation whose beginning is not
#: remembered is rendered as it stands.
TURNS_MAX: Final = 1000
#: Assistant turns at the end of a conversation that are looked up before it is given up.
LOOKED_AT_MAX: Final = 8


class Renderer(Protocol):
    """Renders requests; ``PromptRenderer`` is one."""

    def render(self, request: ChatRequest) -> RenderedPrompt:
        """Return the prompt as the template writes it; raises ``InvalidRequest``."""
        ...

    def says_only_messages(self, request: ChatRequest) -> bool:
        """Whether the prompt holds no remark that is part of no message."""
        ...

    def begins_alike(self, before: ChatRequest, request: ChatRequest) -> bool:
        """Whether what stands before the messages is the same, for the same tools."""
        ...

    def render_after(self, request: ChatRequest, turn: int) -> RenderedPrompt | None:
        """Return what follows the assistant turn at a place, ``None`` if that cannot be told."""
        ...


@dataclass(frozen=True, slots=True)
class _Link:
    """An answer that a request echoes, and the request that it answered."""

    turn: int
    said: RecordedAnswer
    before: ChatRequest


@dataclass(frozen=True, slots=True)
class _Known:
    """A prompt that was made already; its ids packed, four bytes each."""

    request: ChatRequest
    ids: array[int]
    opened: str
    size_bytes: int

    @property
    def rendered(self) -> RenderedPrompt:
        return RenderedPrompt(tuple(self.ids), self.opened)


class IncrementalPrompts:
    """Renders requests so that each begins with what the one before it left in the cache.

    May be called from many threads at once.

    Args:
        renderer: Of the loaded model.
        answers: What was said before.
        fingerprint: Of the loaded model; tokens of another one are never taken over.
        bytes_max: What remembered prompts may take; the least recently used go first.
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
        self._known: OrderedDict[Digest, _Known] = OrderedDict()

    def render(self, request: ChatRequest) -> RenderedPrompt:
        """Return the prompt.

        Raises:
            InvalidRequest: The template refuses the messages.
        """
        if request.raw is not None:
            # It stands as it is: nothing goes before it, and no turn goes on from it.
            return self._renderer.render(request)
        # From the newest turn back to one whose prompt is known, or that begins the conversation.
        chain: list[tuple[Digest, ChatRequest, _Link | None]] = []
        asked, payload = request, request.to_bytes()
        digest = digest_of(payload)
        while (known := self._find(digest)) is None and len(chain) < TURNS_MAX:
            link = self._link_of(request)
            chain.append((digest, request, link))
            if link is None:
                break
            digest, request = link.said.request, link.before
        rendered = known.rendered if known is not None else None
        for name, one, link in reversed(chain):
            rendered = self._joined(rendered, one, link) or self._renderer.render(one)
            # Written once: it is long, and every request comes through here.
            size = len(payload if one is asked else one.to_bytes())
            self._remember(name, one, rendered, size)
        assert rendered is not None, "the newest turn is a link or known"
        return rendered

    def _joined(
        self, before: RenderedPrompt | None, request: ChatRequest, link: _Link | None
    ) -> RenderedPrompt | None:
        if before is None or link is None:
            return None
        after = self._renderer.render_after(request, link.turn)
        if after is None:
            return None
        return RenderedPrompt((*before.tokens, *link.said.token_ids, *after.tokens), after.opened)

    def _link_of(self, request: ChatRequest) -> _Link | None:
        """Return the newest answer in a conversation whose prompt is its beginning."""
        looked_at = 0
        for number in range(len(request.messages) - 2, -1, -1):
            turn = request.messages[number]
            if not turn.origin:
                continue
            if (looked_at := looked_at + 1) > LOOKED_AT_MAX:
                return None
            said = self._answers.find(JobId(turn.origin))
            if said is None or said.fingerprint != self._fingerprint:
                continue
            if not is_echo(turn, said.answer):
                continue
            before = self._request(said.request)
            if (
                before is not None
                and _begins(before, request, number)
                and self._renderer.begins_alike(before, request)
                and self._renderer.says_only_messages(before)
            ):
                return _Link(number, said, before)
        return None

    def _request(self, digest: Digest) -> ChatRequest | None:
        known = self._find(digest)
        return known.request if known is not None else self._answers.request(digest)

    def _find(self, digest: Digest) -> _Known | None:
        with self._lock:
            known = self._known.get(digest)
            if known is not None:
                self._known.move_to_end(digest)
            return known

    def _remember(
        self, digest: Digest, request: ChatRequest, rendered: RenderedPrompt, request_bytes: int
    ) -> None:
        ids = array("I", rendered.tokens)
        size = request_bytes + ids.itemsize * len(ids)
        with self._lock:
            if digest not in self._known and size <= self._bytes_max:
                self._known[digest] = _Known(request, ids, rendered.opened, size)
                self._bytes += size
            while self._bytes > self._bytes_max:
                self._bytes -= self._known.popitem(last=False)[1].size_bytes


def _begins(before: ChatRequest, request: ChatRequest, turns: int) -> bool:
    """Whether an earlier request is the beginning of a conversation up to a turn."""
    return (
        before.raw is None
        and len(before.messages) == turns
        and before.tools == request.tools
        and unattributed(before.messages) == unattributed(request.messages[:turns])
    )
