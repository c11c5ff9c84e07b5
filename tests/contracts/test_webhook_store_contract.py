from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from domain.values import Owner
from domain.webhook.delivery import (
    DeliveryResult,
    DueHost,
    Webhook,
    WebhookId,
    WebhookState,
    WebhookStore,
    webhook_id,
)
from ops.webhooks.store import SqlWebhookStore
from tests.support.builders.log_stores import STORES, new_log_of
from tests.support.fakes.webhooks import InMemoryWebhookStore

OK = DeliveryResult(status=200)
BAD = DeliveryResult(status=500, error="HTTP 500")


def at(second: int) -> str:
    return f"2026-01-01T00:00:{second:02d}.000000Z"


def hook(
    number: int,
    host: str = "a:80",
    *,
    due: int = 0,
    subject: str = "job-1",
    owner: str | None = None,
) -> Webhook:
    return Webhook(
        id=webhook_id(f"event-{number}", f"http://{host}/"),
        subject=subject,
        event="job.completed",
        url=f"http://{host}/",
        host=host,
        position=number,
        body=b'{"type":"job.completed"}',
        created_at=at(0),
        next_at=at(due),
        owner=None if owner is None else Owner(owner),
    )


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[WebhookStore]:
    if request.param == "fake":
        yield InMemoryWebhookStore()
        return
    real = SqlWebhookStore(new_log_of(request, tmp_path))
    yield real
    real.close()


def settle(
    store: WebhookStore,
    webhook: Webhook,
    state: WebhookState,
    answer: DeliveryResult,
    next_s: int | None,
) -> bool:
    return store.settle(
        webhook.id,
        attempt=webhook.attempts,
        state=state,
        answer=answer,
        at=at(9),
        next_at=None if next_s is None else at(next_s),
    )


def test_a_fresh_store_has_read_nothing_and_owes_nothing(store: WebhookStore) -> None:
    assert store.position() == 0
    assert store.due_hosts(at(59), limit=9) == ()
    assert store.claim(DueHost("a:80"), now=at(59), until=at(59), limit=9) == ()
    assert store.get(WebhookId("webhook-none")) is None
    assert store.page(limit=9) == ()


def test_webhooks_and_the_position_are_kept_together_and_once(store: WebhookStore) -> None:
    one, two = hook(1), hook(2)
    store.add([one], position=1)
    store.add([replace(one, url="http://other/"), two], position=2)
    assert store.position() == 2
    assert store.get(one.id) == one
    store.add([hook(3)], position=2)  # another process has read on
    assert store.get(hook(3).id) is None
    store.add([], position=7)
    assert store.position() == 7
    assert store.page(limit=9) == (two, one)


def test_hosts_that_wait_longest_come_first(store: WebhookStore) -> None:
    hooks = [hook(1, "a:80", due=3), hook(2, "b:80", due=1), hook(3, "b:80", due=2)]
    store.add([*hooks, hook(4, "c:80", due=9)], position=4)
    assert store.due_hosts(at(5), limit=9) == (DueHost("b:80"), DueHost("a:80"))
    assert store.due_hosts(at(5), limit=1) == (DueHost("b:80"),)
    assert store.due_hosts(at(0), limit=9) == ()


def test_hosts_of_owners_come_by_turns(store: WebhookStore) -> None:
    hooks = [hook(number, f"{number}:80", due=number, owner="alice") for number in (1, 2, 3)]
    hooks += [hook(4, "1:80", due=4, owner="bob"), hook(5, "5:80", due=5)]
    store.add(hooks, position=5)
    alice, bob = Owner("alice"), Owner("bob")
    turns = (DueHost("1:80", alice), DueHost("1:80", bob), DueHost("5:80"), DueHost("2:80", alice))
    assert store.due_hosts(at(9), limit=4) == turns


def test_only_webhooks_of_the_owner_are_claimed(store: WebhookStore) -> None:
    store.add([hook(1, owner="alice"), hook(2, owner="bob"), hook(3)], position=3)
    for number, owner in ((2, Owner("bob")), (1, Owner("alice")), (3, None)):
        (claimed,) = store.claim(DueHost("a:80", owner), now=at(1), until=at(2), limit=9)
        assert claimed.position == number


def test_a_claimed_webhook_is_not_claimed_again_until_its_time(store: WebhookStore) -> None:
    store.add([hook(1, due=2), hook(2, due=1), hook(3, "b:80")], position=3)
    (first,) = store.claim(DueHost("a:80"), now=at(5), until=at(30), limit=1)
    assert (first.position, first.attempts, first.next_at) == (2, 1, at(30))
    (second,) = store.claim(DueHost("a:80"), now=at(5), until=at(30), limit=9)
    assert second.position == 1
    assert store.claim(DueHost("a:80"), now=at(29), until=at(40), limit=9) == ()
    again = store.claim(DueHost("a:80"), now=at(30), until=at(50), limit=9)
    assert {(one.position, one.attempts) for one in again} == {(1, 2), (2, 2)}


def test_only_the_latest_try_can_be_settled(store: WebhookStore) -> None:
    store.add([hook(1)], position=1)
    (first,) = store.claim(DueHost("a:80"), now=at(1), until=at(2), limit=1)
    (second,) = store.claim(DueHost("a:80"), now=at(3), until=at(20), limit=1)
    assert not settle(store, first, WebhookState.DELIVERED, OK, None)
    assert settle(store, second, WebhookState.PENDING, BAD, 40)
    shown = store.get(first.id)
    assert shown is not None
    assert (shown.state, shown.status, shown.error) == (WebhookState.PENDING, 500, "HTTP 500")
    assert (shown.last_at, shown.next_at) == (at(9), at(40))
    (third,) = store.claim(DueHost("a:80"), now=at(40), until=at(50), limit=1)
    assert settle(store, third, WebhookState.DELIVERED, OK, None)
    assert not settle(store, third, WebhookState.FAILED, BAD, None)
    assert store.due_hosts(at(59), limit=9) == ()


def test_one_that_is_over_can_be_made_due_again(store: WebhookStore) -> None:
    store.add([hook(1)], position=1)
    (taken,) = store.claim(DueHost("a:80"), now=at(1), until=at(2), limit=1)
    settle(store, taken, WebhookState.FAILED, BAD, None)
    revived = store.revive(taken.id, at=at(30))
    assert revived is not None
    assert (revived.state, revived.attempts, revived.next_at) == (WebhookState.PENDING, 0, at(30))
    assert [one.id for one in store.claim(DueHost("a:80"), now=at(30), until=at(50), limit=1)] == [
        taken.id
    ]
    assert store.revive(WebhookId("webhook-none"), at=at(30)) is None


def test_pages_go_back_in_time_and_by_state(store: WebhookStore) -> None:
    hooks = [hook(number, subject=f"job-{number % 2}") for number in (1, 2, 3, 4)]
    store.add(hooks, position=4)
    ids = [one.id for one in hooks]
    assert [one.id for one in store.page(limit=2)] == [ids[3], ids[2]]
    assert [one.id for one in store.page(limit=9, before=ids[2])] == [ids[1], ids[0]]
    assert store.page(limit=9, before=WebhookId("webhook-none")) == ()
    assert [one.id for one in store.of_subject("job-0", limit=9)] == [ids[3], ids[1]]
    (taken,) = store.claim(DueHost("a:80"), now=at(1), until=at(2), limit=1)
    settle(store, taken, WebhookState.DELIVERED, OK, None)
    assert [one.id for one in store.page(limit=9, state=WebhookState.DELIVERED)] == [ids[0]]


def test_those_over_for_long_are_forgotten(store: WebhookStore) -> None:
    store.add([hook(1), hook(2), hook(3)], position=3)
    taken = store.claim(DueHost("a:80"), now=at(1), until=at(2), limit=2)
    for one in taken:
        settle(store, one, WebhookState.DELIVERED, OK, None)
    assert store.forget(before=at(9), limit=9) == 0
    assert store.forget(before=at(10), limit=1) == 1
    assert store.forget(before=at(10), limit=9) == 1
    assert [one.position for one in store.page(limit=9)] == [3]
