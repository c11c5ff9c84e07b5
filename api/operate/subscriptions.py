"""``/v1/subscriptions``: named readers of the events, whose positions the service keeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final, Literal

from pydantic import Field
from typing_extensions import TypedDict  # pydantic reads only this one below Python 3.12

from api.app import App
from api.http.bodies import INT64_MAX, Items, NativeBody, WebhookBody
from api.http.messages import Access, Objects, Reply, Request, json_reply, shown
from api.http.operation import Operation, body_of, page_size, path
from api.operate.events import EventObject, event_object
from domain.errors import InvalidRequest
from domain.events.subscription import SubscriptionCreated
from domain.log.subscriptions import BATCH_MAX, EVENT_TYPES, Subscription

_NAME_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
_NAME: Final = path("subscription", pattern=_NAME_PATTERN, example="reader")
_LIMIT: Final = page_size(default=100, most=BATCH_MAX, description="largest number of events")
_TAKEN: Final = "A subscription of this name wants something else"


class SubscriptionBody(NativeBody):
    """A new subscription.

    Without ``types`` it gets all events but those of subscriptions; without ``after``, those that
    are recorded from now on. With ``webhook`` each event is sent there.
    """

    name: Annotated[str, Field(pattern=_NAME_PATTERN)]
    types: Annotated[Items[str], Field(max_length=len(EVENT_TYPES))] = Field(default_factory=list)
    after: Annotated[int, Field(ge=0, le=INT64_MAX)] | None = None
    webhook: WebhookBody | None = None


class PositionBody(NativeBody):
    """The position of an event."""

    position: Annotated[int, Field(ge=0, le=INT64_MAX)]


class ParkedObject(TypedDict):
    """An event that the reader does not get any more."""

    position: int
    reason: Literal["deliveries", "nack"]
    parked_at: str


class SubscriptionObject(TypedDict):
    """A subscription.

    All its events up to ``position`` are acknowledged. ``deliveries`` counts those of the first
    one behind it, and ``lag`` the events that are not acknowledged, up to 1,000. With a webhook
    none is fetched, and these figures stay as they are.
    """

    object: Literal["subscription"]
    name: str
    types: list[str]
    webhook: str | None
    created_at: str
    position: int
    delivered: int
    deliveries: int
    lag: int
    parked: list[ParkedObject]


class DeliveredEvents(TypedDict):
    """The next events; acknowledge ``position`` once all of them are dealt with."""

    object: Literal["list"]
    data: list[EventObject]
    position: int


def create_subscription(app: App, request: Request) -> Reply:
    """Create a named reader of events, whose position the service keeps."""
    body = body_of(SubscriptionBody, request)
    url = None if body.webhook is None else app.webhook_policy.url_of(body.webhook)
    owner = request.caller.sees
    if url is not None and owner is not None:
        msg = "a webhook of events needs a key that sees the events of all keys"
        raise InvalidRequest(msg, field="webhook")
    head = app.log.head().position
    wanted = SubscriptionCreated(
        name=body.name,
        owner=owner,
        types=tuple(sorted(set(body.types))),
        position=head if body.after is None else min(body.after, head),
        url=url,
    )
    is_new = app.subscriptions.create(wanted, correlation_id=request.id)
    found = _subscription(app, app.subscriptions.get(owner, body.name))
    headers = {"location": f"/v1/subscriptions/{body.name}"}
    return json_reply(found, status=201 if is_new else 200, headers=headers)


def list_subscriptions(app: App, request: Request) -> Objects[SubscriptionObject]:
    """List the subscriptions of the caller, in the order of their creation."""
    readers = app.subscriptions.read_all()
    own = [one for one in readers if one.created.owner == request.caller.sees]
    return {"object": "list", "data": [_subscription(app, one) for one in own]}


def get_subscription(app: App, request: Request) -> SubscriptionObject:
    """Return a subscription, with its lag and its parked events."""
    return _subscription(app, app.subscriptions.get(request.caller.sees, _NAME.read(request)))


def delete_subscription(app: App, request: Request) -> Reply:
    """Delete a subscription."""
    name = _NAME.read(request)
    app.subscriptions.delete(request.caller.sees, name, correlation_id=request.id)
    return Reply(status=204)


def fetch_subscription_events(app: App, request: Request) -> DeliveredEvents:
    """Return the events behind the acknowledged ones, and count the delivery."""
    owner, name = request.caller.sees, _NAME.read(request)
    events = app.subscriptions.deliver(
        owner, name, limit=_LIMIT.read(request), correlation_id=request.id
    )
    reader = app.subscriptions.get(owner, name)
    return {
        "object": "list",
        "data": [event_object(event) for event in events],
        "position": events[-1].position if events else reader.position,
    }


def acknowledge_events(app: App, request: Request) -> SubscriptionObject:
    """Acknowledge all delivered events up to a position."""
    return _settle(app, request, app.subscriptions.acknowledge)


def park_event(app: App, request: Request) -> SubscriptionObject:
    """Park a delivered event; the others are delivered again."""
    return _settle(app, request, app.subscriptions.park)


def _settle(app: App, request: Request, settle: Callable[..., Subscription]) -> SubscriptionObject:
    position = body_of(PositionBody, request).position
    owner, name = request.caller.sees, _NAME.read(request)
    return _subscription(app, settle(owner, name, position, correlation_id=request.id))


def _subscription(app: App, reader: Subscription) -> SubscriptionObject:
    return shown(
        SubscriptionObject,
        reader,
        reader.created,
        object="subscription",
        webhook=reader.created.url,
        lag=0 if reader.created.url else app.subscriptions.lag_of(reader),
        parked=[shown(ParkedObject, one) for one in reader.parked],
    )


SUBSCRIPTION_OPERATIONS: Final = (
    Operation(
        "POST /v1/subscriptions",
        create_subscription,
        body=SubscriptionBody,
        example={"name": "reader", "types": ["JobCompleted"]},
        reply=SubscriptionObject,
        status=201,
        may_be_done=True,
        responses={400: "An unknown type, or a webhook that may not be called", 409: _TAKEN},
    ),
    Operation("GET /v1/subscriptions", list_subscriptions),
    Operation("GET /v1/subscriptions/{subscription}", get_subscription, parameters=(_NAME,)),
    Operation(
        "DELETE /v1/subscriptions/{subscription}",
        delete_subscription,
        parameters=(_NAME,),
        status=204,
    ),
    Operation(
        "GET /v1/subscriptions/{subscription}/events",
        fetch_subscription_events,
        parameters=(_NAME, _LIMIT),
        access=Access.CHANGE,
    ),
    Operation(
        "POST /v1/subscriptions/{subscription}/ack",
        acknowledge_events,
        parameters=(_NAME,),
        body=PositionBody,
        example={"position": 0},
        responses={400: "No event at this position was delivered"},
    ),
    Operation(
        "POST /v1/subscriptions/{subscription}/nack",
        park_event,
        parameters=(_NAME,),
        body=PositionBody,
        example={"position": 0},
        responses={400: "No event at this position was delivered"},
    ),
)
