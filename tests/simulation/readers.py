"""Clients that read the answer of a job in a simulated life, each with the code of the real one."""

from __future__ import annotations

from dataclasses import dataclass, field

from api.dialects.jobs.durable import MessagesBeyond, Offset, begin_at, parse_offset
from api.errors import TransportError
from api.streaming.feed import ItemMerge
from domain.audit.recorded_answers import JobRecords
from domain.chat.items import StreamItem, is_output
from domain.chat.stored_answer import ReaderPosition
from domain.values import JobId
from tests.simulation.broker import StoredItems
from tests.support.fakes.event_log import InMemoryEventLog


@dataclass
class Reader:
    """A connection that follows one life of a job, with the merge of the real one.

    Attributes:
        seen: What it was given.
        position: The reader position after them.
        epoch: The epoch of what it was given.
        changed: Whether it ended because a later epoch began after output of this one.
    """

    job_id: JobId
    life: int
    merge: ItemMerge = field(default_factory=ItemMerge)
    seen: list[StreamItem] = field(default_factory=list)
    position: ReaderPosition = field(default_factory=ReaderPosition)
    epoch: int = 1
    changed: bool = False
    durable: DurableReader = field(init=False)

    def __post_init__(self) -> None:
        self.durable = DurableReader(self.job_id)

    @property
    def has_ended(self) -> bool:
        """Whether it was given the last word."""
        return self.changed or (bool(self.seen) and self.seen[-1].is_terminal)

    def look(self, items: StoredItems) -> None:
        """Read the store as the hub does, up to the last word."""
        if self.has_ended:
            return
        raw = [(1, item) for item in items.raw(self.job_id)]
        cursor = self.merge.cursor
        if cursor is not None:
            raw = [(size, one) for size, one in raw if (one.attempt, one.n or 0) > cursor]
        self.merge.lag()
        self.merge.begin_page()
        self.merge.page(raw, is_last=True)
        for item in self.merge.take():
            if not self.has_ended:
                self._give(item)
                assert self.changed or item.n == len(self.seen) - 1, f"{item} in {self.seen}"
                self.position.add(item)

    def _give(self, item: StreamItem) -> None:
        """Do what ``OpenJob`` does."""
        if item.epoch > self.epoch:
            if any(is_output(one.body) for one in self.seen):
                self.changed = True
                return
            self.epoch = item.epoch
            self.seen.clear()
        assert item.epoch == self.epoch, f"{item} after {self.seen}"
        self.seen.append(item)

    def look_into_log(self, log: InMemoryEventLog, items: StoredItems) -> None:
        """Read the log as a real reader without recent items does, with the same code."""
        records = JobRecords(log=log, payloads=log, views=log.views)
        self.durable.read(records, items)
        if not self.has_ended:
            for item in records.rest_of(self.job_id, self.position, items) or ():
                if not self.changed:
                    self._give(item)


@dataclass
class DurableReader:
    """A client of Durable Streams, which knows its last offset and connects again for each read.

    Attributes:
        text: What it was given since it began at ``-1``.
        is_closed: Whether the last reply was the end of the stream.
    """

    job_id: JobId
    offset: str = "-1"
    text: str = ""
    ends: int = 0
    is_closed: bool = False

    def read(self, records: JobRecords, items: StoredItems) -> None:
        """Read what is behind the offset, with the code of the route."""
        epoch, known = records.answer_so_far(self.job_id, items)
        tail = MessagesBeyond(Offset(epoch))
        tail.add(known)
        try:
            reader = MessagesBeyond(begin_at(parse_offset(self.offset), tail.offset))
        except TransportError:  # 410, the answer has begun anew
            self.offset, self.text, self.ends = "-1", "", 0
            reader = MessagesBeyond(Offset(tail.offset.epoch))
        for message in reader.add(known):
            assert not self.ends, f"{message} after the end of {self.job_id}"
            self.text += message.get("text", "")
            self.ends += message["kind"] in {"finished", "failed"}
        assert str(reader.offset) >= self.offset, f"an offset that goes back: {self}"
        self.offset, self.is_closed = str(reader.offset), reader.offset.has_end
