"""Whatever happens on the two ways to a reader, it gets every item once and in order."""

from __future__ import annotations

from collections import deque

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
)

from api.streaming.feed import ItemMerge
from domain.chat.items import Finished, Progress, StreamItem, Text
from domain.values import StopReason, Usage

SIZE = 10
ITEMS_MAX = 5
BYTES_MAX = 40


def text(n: int, attempt: int = 1, epoch: int = 1) -> StreamItem:
    return StreamItem(n=n, attempt=attempt, body=Text(text=str(n), ids=(n,)), epoch=epoch)


def end(n: int, attempt: int = 1, epoch: int = 1) -> StreamItem:
    body = Finished(stop_reason=StopReason.END_TURN, usage=Usage())
    return StreamItem(n=n, attempt=attempt, body=body, epoch=epoch)


def sized(*items: StreamItem) -> list[tuple[int, StreamItem]]:
    return [(SIZE, item) for item in items]


class ReaderMachine(RuleBasedStateMachine):
    """A store and a bus that loses, repeats and delays, against one reader."""

    def __init__(self) -> None:
        super().__init__()
        self.merge = ItemMerge(items_max=ITEMS_MAX, bytes_max=BYTES_MAX)
        self.store: list[StreamItem] = []
        self.bus: deque[StreamItem] = deque()
        self.on_its_way: tuple[list[StreamItem], bool] | None = None
        self.attempt = self.epoch = 1
        self.got: list[tuple[int, int]] = []

    @rule()
    def publish(self) -> None:
        self._store_and_announce(1 + self._last())

    @rule()
    def newer_attempt_goes_on(self) -> None:
        self.attempt += 1

    @rule(back=st.integers(1, 5))
    def newer_attempt_repeats_the_last_ones(self, back: int) -> None:
        last = self._last()
        self.attempt += 1
        for n in range(max(0, last + 1 - back), last + 1):
            self._store_and_announce(n)

    @precondition(lambda self: self.store)
    @rule()
    def another_model_begins_anew(self) -> None:
        self.attempt += 1
        self.epoch = self.attempt
        self._store_and_announce(0)

    @precondition(lambda self: self.store)
    @rule()
    def broker_forgets_the_epochs_before(self) -> None:
        self.store = [item for item in self.store if item.epoch == self.epoch]

    @precondition(lambda self: self.bus)
    @rule()
    def announcement_arrives(self) -> None:
        self.merge.announced(self.bus.popleft(), SIZE)

    @precondition(lambda self: self.bus)
    @rule()
    def announcement_arrives_twice(self) -> None:
        self.merge.announced(self.bus[0], SIZE)

    @rule()
    def connection_breaks_and_comes_back(self) -> None:
        self.bus.clear()
        self.merge.lag()

    @precondition(lambda self: self.on_its_way is None and self.merge.needs_page)
    @rule(limit=st.integers(1, 4))
    def page_is_asked_for(self, limit: int) -> None:
        self.merge.begin_page()
        self.on_its_way = self._page(limit)

    @precondition(lambda self: self.on_its_way is not None)
    @rule()
    def page_arrives(self) -> None:
        assert self.on_its_way is not None
        items, is_last = self.on_its_way
        self.merge.page(sized(*items), is_last=is_last)
        self.on_its_way = None

    @rule()
    def reader_takes(self) -> None:
        self.got += [(item.epoch, item.n) for item in self.merge.take() if item.n is not None]

    @invariant()
    def reader_has_a_gapless_beginning_of_each_epoch(self) -> None:
        epochs = [epoch for epoch, _ in self.got]
        assert epochs == sorted(epochs)
        for one in set(epochs):
            numbers = [n for epoch, n in self.got if epoch == one]
            assert numbers == list(range(len(numbers)))

    @invariant()
    def buffer_is_bounded(self) -> None:
        assert len(self.merge.items) <= ITEMS_MAX
        assert self.merge._bytes <= BYTES_MAX
        assert not self.merge.is_broken

    def teardown(self) -> None:
        self.all_that_is_under_way_arrives()

    @rule()
    def all_that_is_under_way_arrives(self) -> None:
        """Then the reader has all that was ever published, with nothing more to wake it."""
        if self.on_its_way is not None:
            self.page_arrives()
        while self.bus:
            self.announcement_arrives()
        for _ in range(10 * len(self.store) + 10):
            self.reader_takes()
            if self.merge.needs_page:
                self.page_is_asked_for(2)
                self.page_arrives()
        assert [n for epoch, n in self.got if epoch == self.epoch] == list(range(1 + self._last()))

    def _last(self) -> int:
        return max((item.n or 0 for item in self.store if item.epoch == self.epoch), default=-1)

    def _store_and_announce(self, n: int) -> None:
        item = text(n, self.attempt, self.epoch)
        self.store.append(item)
        self.bus.append(item)

    def _page(self, limit: int) -> tuple[list[StreamItem], bool]:
        cursor = self.merge.cursor or (0, 0)
        rest = [item for item in self.store if (item.attempt, item.n or 0) > cursor]
        return rest[:limit], len(rest) < limit


TestReader = ReaderMachine.TestCase
TestReader.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)


def test_fresh_reader_looks_into_the_store_first() -> None:
    merge = ItemMerge()
    assert merge.needs_page
    merge.begin_page()
    merge.page([], is_last=True)
    assert not merge.needs_page


def test_announcement_that_overtakes_a_page_leads_to_another_page() -> None:
    merge = ItemMerge()
    merge.begin_page()
    merge.announced(text(1), SIZE)
    merge.page(sized(text(0)), is_last=True)
    assert merge.take() == [text(0)]
    assert merge.needs_page


def test_transient_item_passes_only_while_the_reader_is_up_to_date() -> None:
    progress = StreamItem(n=None, attempt=1, body=Progress(phase="queued", done=0, total=1))
    merge = ItemMerge(items_max=1)
    merge.announced(progress, SIZE)
    assert merge.take() == []
    merge.begin_page()
    merge.page([], is_last=True)
    merge.announced(progress, SIZE)
    merge.announced(progress, SIZE)  # there is no room
    assert merge.take() == [progress]


def test_item_larger_than_the_buffer_is_taken_alone() -> None:
    merge = ItemMerge(bytes_max=SIZE)
    merge.announced(text(0), 10 * SIZE)
    merge.announced(text(1), 1)
    assert merge.take() == [text(0)]
    assert merge.needs_page


def test_answer_whose_beginning_was_lost_is_taken_from_the_attempt_that_repeats_it() -> None:
    merge = ItemMerge()
    merge.begin_page()
    merge.page(sized(text(3), text(4), text(0, 2), text(1, 2), end(2, 2)), is_last=True)
    assert merge.is_complete
    assert merge.take() == [text(0, 2), text(1, 2), end(2, 2)]
    assert not merge.is_broken


def test_answer_that_begins_anew_replaces_what_the_reader_has_not_taken() -> None:
    merge = ItemMerge()
    for n in range(3):
        merge.announced(text(n), SIZE)
    merge.announced(text(0, 2, 2), SIZE)
    merge.announced(text(3), SIZE)
    assert merge.take() == [text(0, 2, 2)]
    assert merge._bytes == 0


def test_end_of_an_epoch_whose_beginning_is_lost_breaks_the_stream() -> None:
    merge = ItemMerge()
    merge.begin_page()
    merge.page(sized(text(0), text(1), text(1, 2, 2), end(2, 2, 2)), is_last=True)
    assert merge.take() == [text(0), text(1)]
    assert merge.is_broken


def test_end_beyond_a_hole_breaks_the_stream_once_what_came_before_is_taken() -> None:
    merge = ItemMerge()
    merge.begin_page()
    merge.page(sized(text(0), text(3), end(4)), is_last=True)
    assert not merge.is_broken
    assert merge.take() == [text(0)]
    assert merge.is_broken


@given(after=st.integers(0, 20), last=st.integers(0, 20))
def test_reader_that_resumes_gets_what_is_above_its_number(after: int, last: int) -> None:
    merge = ItemMerge(after=after)
    for n in range(last + 1):
        merge.announced(text(n), SIZE)
    merge.begin_page()
    cursor = merge.cursor or (0, 0)
    merge.page(sized(*(text(n) for n in range(last + 1) if (1, n) > cursor)), is_last=True)
    assert [item.n for item in merge.take()] == list(range(after + 1, last + 1))
