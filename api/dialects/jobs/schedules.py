"""``/v1/schedules``: jobs by cron expressions, and the submission of those that are due."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Final, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict  # pydantic reads only this one below Python 3.12

from api.app import App
from api.dialects.generate import MODEL_UNKNOWN
from api.dialects.jobs import wire as native
from api.dialects.jobs.bodies import JobBody
from api.http.bodies import NativeBody, load_json
from api.http.messages import Caller, Deleted, Objects, Request, shown
from api.http.operation import Operation, body_of, path
from api.submit import accept_job, bound_model
from domain.batch.schedules import Schedule, ScheduleId, ScheduleRunner
from domain.chat.request import canonical_json
from domain.errors import InvalidRequest
from domain.events.schedule import ScheduleAdded
from domain.job.submit import RecordedBy, idempotency_digest
from domain.values import JobId, digest_of, rfc3339
from ops.cron import CronsimTable
from ops.settings.api_keys import KeyScope

#: Longest cron expression, in characters.
CRON_CHARS_MAX: Final = 200
SCHEDULE_ID_PATTERN: Final = "^schedule-[0-9a-f]{32}$"
_SCHEDULE_NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
_SCHEDULE_ID: Final = path(
    "schedule_id", pattern=SCHEDULE_ID_PATTERN, example="schedule-" + "0" * 32
)


class ScheduleBody(NativeBody):
    """The body of ``POST /v1/schedules``.

    ``missed``: whether the latest of the instants that were missed gets a job (``once``) or none
    does (``skip``).
    """

    name: Annotated[str, Field(pattern=_SCHEDULE_NAME)]
    cron: Annotated[str, Field(min_length=1, max_length=CRON_CHARS_MAX)]
    timezone: Annotated[str, Field(min_length=1, max_length=64)] = "UTC"
    missed: Literal["once", "skip"] = "once"
    job: JobBody


class ScheduleRun(TypedDict):
    """The latest job of a schedule, and the instant that it is for."""

    due: str
    job: str


class MissedRuns(TypedDict):
    """Instants that passed without a job; ``reason`` is ``late``, or why the job was refused."""

    first: str
    last: str
    count: int
    reason: str


class ScheduleObject(TypedDict):
    """A schedule; lists leave out ``job``, the body of its jobs."""

    id: str
    object: Literal["schedule"]
    name: str
    cron: str
    timezone: str
    missed: Literal["once", "skip"]
    status: Literal["active", "paused"]
    created_at: str
    next_at: str | None
    fired: int
    last: ScheduleRun | None
    missed_count: int
    last_missed: MissedRuns | None
    job: NotRequired[dict[str, Any]]


def schedule_runner(app: App) -> ScheduleRunner:
    """Return what submits the jobs that are due."""
    return ScheduleRunner(
        records=app.schedules, jobs=_SubmittedJobs(app), cron=CronsimTable(), clock=app.clock
    )


@dataclass(frozen=True, slots=True)
class _SubmittedJobs:
    """``ScheduledJobs`` as requests that the owner of the schedule sends."""

    app: App

    def submit(self, schedule: Schedule, due: str, recorded_by: RecordedBy) -> None:
        body = self.app.payloads.get(schedule.facts.job)
        headers = {
            "idempotency-key": _key(schedule, due),
            "user-agent": f"schedule {schedule.facts.name}",
        }
        request = Request(
            id=schedule.id,
            method="POST",
            path="/v1/jobs",
            headers=headers,
            body=body,
            caller=_caller(schedule),
        )
        parse = partial(native.parse, body, headers, defaults=self.app.defaults)
        accept_job(self.app, parse, request, protocol="jobs", recorded_by=recorded_by)

    def find(self, schedule: Schedule, due: str) -> JobId | None:
        key = idempotency_digest(_key(schedule, due), schedule.facts.keyspace)
        job = self.app.views.keyed(key)
        return None if job is None else job.id


def _caller(schedule: Schedule) -> Caller:
    """Return who its jobs belong to; they may use only what is the owner's."""
    owner, keyspace = schedule.facts.owner, schedule.facts.keyspace
    scope = KeyScope.ADMIN if owner is None else KeyScope.OWN
    return Caller(name=owner or "", scope=scope, is_alone=not keyspace)


def _key(schedule: Schedule, due: str) -> str:
    return f"{schedule.id}:{due}"


def create_schedule(app: App, request: Request) -> ScheduleObject:
    """Submit a job at each instant of a cron expression."""
    wire = body_of(ScheduleBody, request)
    if wire.job.after is not None:
        msg = "each of the jobs would wait for the same ones; submit them with their successors"
        raise InvalidRequest(msg, field="job.after")
    if wire.job.unique is not None:
        raise InvalidRequest("each instant has a job of its own", field="job.unique")
    body = canonical_json(load_json(request.body)["job"])
    caller = request.caller
    # What would refuse every job refuses the schedule.
    bound_model(app, native.parse(body, {}, app.defaults))
    app.webhook_policy.url_of(wire.job.webhook)
    now = app.clock.now()
    added = ScheduleAdded(
        name=wire.name,
        cron=wire.cron,
        timezone=wire.timezone,
        job=digest_of(body),
        runs_late=wire.missed == "once",
        next_at=rfc3339(CronsimTable().check(wire.cron, wire.timezone, now)),
        owner=caller.owner,
        keyspace=caller.keyspace,
    )
    return _whole(
        app,
        app.schedules.add(added, body=body, correlation_id=request.id, sharer=caller.sharer),
    )


def list_schedules(app: App, request: Request) -> Objects[ScheduleObject]:
    """List the schedules, oldest first."""
    sees = request.caller.sees
    present = app.schedules.present()
    data = [_object(one) for one in present if sees in {None, one.facts.owner}]
    return {"object": "list", "data": data}


def get_schedule(app: App, request: Request) -> ScheduleObject:
    """Return a schedule, with the body of its jobs."""
    return _whole(app, app.schedules.load(ScheduleId(_SCHEDULE_ID.read(request))))


def pause_schedule(app: App, request: Request) -> ScheduleObject:
    """Stop the jobs of a schedule; a repeated request changes nothing."""
    return _object(app.schedules.pause(ScheduleId(_SCHEDULE_ID.read(request))))


def resume_schedule(app: App, request: Request) -> ScheduleObject:
    """Let a paused schedule go on with its next instant.

    What passed during the pause is not missed.
    """
    schedule_id = ScheduleId(_SCHEDULE_ID.read(request))
    facts = app.schedules.load(schedule_id).facts
    first = CronsimTable().check(facts.cron, facts.timezone, app.clock.now())
    return _object(app.schedules.resume(schedule_id, next_at=rfc3339(first)))


def remove_schedule(app: App, request: Request) -> Deleted:
    """Remove a schedule; its jobs stay."""
    schedule_id = ScheduleId(_SCHEDULE_ID.read(request))
    app.schedules.remove(schedule_id)
    return {"id": schedule_id, "object": "schedule", "deleted": True}


def _whole(app: App, schedule: Schedule) -> ScheduleObject:
    whole = _object(schedule)
    whole["job"] = load_json(app.payloads.get(schedule.facts.job))
    return whole


def _object(schedule: Schedule) -> ScheduleObject:
    facts, last, missed = schedule.facts, schedule.last, schedule.last_missed
    return shown(
        ScheduleObject,
        schedule,
        facts,
        object="schedule",
        missed="once" if facts.runs_late else "skip",
        status="paused" if schedule.is_paused else "active",
        next_at=schedule.due_at,
        last=None if last is None else shown(ScheduleRun, last),
        missed_count=schedule.missed,
        last_missed=None if missed is None else shown(MissedRuns, missed),
    )


SCHEDULE_OPERATIONS: Final = (
    Operation(
        "POST /v1/schedules",
        create_schedule,
        body=ScheduleBody,
        example={
            "name": "nightly",
            "cron": "0 3 * * *",
            "timezone": "Europe/Berlin",
            "job": {"prompt": "State hello.", "max_tokens": 32},
        },
        status=201,
        responses={
            404: MODEL_UNKNOWN,
            409: "A schedule has that name",
            429: "There are too many schedules",
        },
    ),
    Operation("GET /v1/schedules", list_schedules),
    Operation("GET /v1/schedules/{schedule_id}", get_schedule, parameters=(_SCHEDULE_ID,)),
    Operation("DELETE /v1/schedules/{schedule_id}", remove_schedule, parameters=(_SCHEDULE_ID,)),
    Operation(
        "POST /v1/schedules/{schedule_id}/pause",
        pause_schedule,
        parameters=(_SCHEDULE_ID,),
    ),
    Operation(
        "POST /v1/schedules/{schedule_id}/resume",
        resume_schedule,
        parameters=(_SCHEDULE_ID,),
    ),
)
