"""The contexts of an agent as maps of blocks: what they share, and where the blocks are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from domain.events.agent import AgentDeleted, AgentForgotten
from domain.events.cache import AgentCacheEvicted, AgentCacheSaved
from domain.kv.hashing import BlockHash
from domain.kv.places import NAMES_MAX, BlockPlaces
from domain.kv.spec import BLOCK_TOKENS
from domain.log.codec import decode_event
from domain.log.folded_stream import again_after_conflicts
from domain.log.ports import EventLog
from domain.log.record import AGENT_STREAM, Draft, EventFilter, RecordedEvent
from domain.ports import IdSource
from domain.values import AgentId, Owner, StreamName

#: Most contexts of one agent that are returned.
CONTEXTS_MAX = 8
#: Saved contexts of an agent that are read to find these.
OWN_EVENTS_MAX = 64
#: Saved contexts of the service that are searched for shared blocks.
ALL_EVENTS_MAX = 100
_SAVED = AgentCacheSaved.__name__
_ENDS = {cls.__name__ for cls in (AgentCacheEvicted, AgentForgotten, AgentDeleted)}


@dataclass(frozen=True, slots=True, kw_only=True)
class MappedBlock:
    """A block of a context.

    Attributes:
        name: Its name, 64 hex digits.
        agents: Other agents whose saved contexts have it.
        in_memory: Whether a worker has it in memory; ``None`` if no worker answered.
        on_disk: Whether a worker has it on disk; ``None`` if no worker answered.
    """

    name: str
    tokens: int
    agents: frozenset[AgentId]
    in_memory: bool | None
    on_disk: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MappedContext:
    """A context that was saved, and is no beginning of a later one.

    Attributes:
        at: RFC 3339 instant of its record.
        blocks: Its blocks in order, the partly filled one last.
    """

    saved: AgentCacheSaved
    at: str
    blocks: tuple[MappedBlock, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentContexts:
    """Reads and deletes the cached contexts of agents; every method blocks."""

    log: EventLog
    places: BlockPlaces
    ids: IdSource

    def read(self, agent: AgentId, owner: Owner | None = None) -> tuple[MappedContext, ...]:
        """Return the contexts of an agent, the one saved last first.

        Args:
            owner: Of the agents that share blocks, only those of this API key are named.

        Raises:
            LogUnavailable: The log cannot be read.
            QueueUnavailable: The broker cannot be reached.
        """
        own = self._own(agent)
        others = self._others(agent, owner)
        names = _names(event for event, _ in own)
        found = self.places.find(names)
        in_memory = _flags(names, [one.in_memory for one in found])
        on_disk = _flags(names, [one.on_disk for one in found])
        return tuple(
            MappedContext(
                saved=event,
                at=at,
                blocks=tuple(
                    MappedBlock(
                        name=name,
                        tokens=tokens,
                        agents=frozenset(others.get(name, ())),
                        in_memory=in_memory.get(name),
                        on_disk=on_disk.get(name),
                    )
                    for name, tokens in _blocks(event)
                ),
            )
            for event, at in own
        )

    def forget(self, agent: AgentId, *, correlation_id: str) -> int:
        """Delete the blocks and checkpoints that only this agent's contexts use.

        Later prompts of the agent are computed again. Its texts stay in the log.

        Returns:
            The number of deleted names.

        Raises:
            LogUnavailable: The log cannot be read, or nothing was written.
            QueueUnavailable: The broker cannot be reached; nothing was recorded.
        """
        own, others = self._own(agent), self._others(agent)
        used: dict[str, None] = {}
        for event, _ in own:
            used |= dict.fromkeys([*(name for name, _ in _blocks(event)), *event.checkpoints])
        names = [name for name in used if name not in others][:NAMES_MAX]
        if not names:
            return 0
        self.places.forget([_name(digits) for digits in names])
        evicted = AgentCacheEvicted(agent=agent, blocks=len(names), reason="operator")
        self._append(agent, evicted, correlation_id)
        return len(names)

    def _own(self, agent: AgentId) -> list[tuple[AgentCacheSaved, str]]:
        """Return the saved contexts that still count, newest first."""
        events = self.log.select_before(
            EventFilter(stream=AGENT_STREAM + agent, types=(_SAVED, *_ENDS)),
            limit=OWN_EVENTS_MAX,
        )
        own: list[tuple[AgentCacheSaved, str]] = []
        covered: set[str] = set()
        for recorded in reversed(events):
            if recorded.type in _ENDS or len(own) == CONTEXTS_MAX:
                break
            event = _saved(recorded)
            last = event.blocks[-1:] or (event.tail or "",)
            if last[0] and last[0] not in covered:
                own.append((event, recorded.recorded_at))
            covered.update(event.blocks)
        return own

    def _others(self, agent: AgentId, owner: Owner | None = None) -> dict[str, set[AgentId]]:
        """Return the other agents of each block of the contexts saved last."""
        events = self.log.select_before(
            EventFilter(types=(_SAVED,), owner=owner), limit=ALL_EVENTS_MAX
        )
        users: dict[str, set[AgentId]] = {}
        for recorded in events:
            other = AgentId(recorded.stream.removeprefix(AGENT_STREAM))
            if other != agent:
                event = _saved(recorded)
                for name in (*event.blocks, *event.checkpoints, *filter(None, [event.tail])):
                    users.setdefault(name, set()).add(other)
        return users

    def _append(self, agent: AgentId, event: AgentCacheEvicted, correlation_id: str) -> None:
        stream = StreamName(AGENT_STREAM + agent)
        draft = Draft(event_id=self.ids.event_id(), event=event, correlation_id=correlation_id)

        def append() -> None:
            last = self.log.select_before(EventFilter(stream=stream), limit=1)
            version = last[0].version if last else 0
            self.log.append(stream, [draft], expected_version=version)

        again_after_conflicts(append)


def _saved(recorded: RecordedEvent) -> AgentCacheSaved:
    event = decode_event(recorded.type, recorded.schema_version, recorded.data)
    assert isinstance(event, AgentCacheSaved)
    return event


def _blocks(event: AgentCacheSaved) -> list[tuple[str, int]]:
    """Return name and length of each block in order."""
    blocks = [(name, BLOCK_TOKENS) for name in event.blocks]
    if event.tail is not None:
        blocks.append((event.tail, max(0, event.tokens - len(blocks) * BLOCK_TOKENS)))
    return blocks


def _names(events: Iterable[AgentCacheSaved]) -> list[BlockHash]:
    digits = dict.fromkeys(name for event in events for name, _ in _blocks(event))
    return [_name(one) for one in digits][:NAMES_MAX]


def _name(digits: str) -> BlockHash:
    return BlockHash(bytes.fromhex(digits))


def _flags(names: Sequence[BlockHash], workers: Sequence[Sequence[bool]]) -> dict[str, bool]:
    """Return by name whether any worker has the block; empty if none answered."""
    if not workers:
        return {}
    return {name.hex(): any(one[at] for one in workers) for at, name in enumerate(names)}
