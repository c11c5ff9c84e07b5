"""Plausible bugs; the simulator must find every one."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from unittest import mock

from api.dialects.jobs import durable as durable_module
from api.dialects.jobs.durable import Offset
from domain.batch import schedules as schedules_module
from domain.batch.ports import BatchTally
from domain.batch.schedules import SCHEDULE_PREFIX, Schedule, ScheduleRunner
from domain.chat.items import Finished
from domain.errors import QueueUnavailable
from domain.events.job import AttemptStarted, JobSubmitted
from domain.events.schedule import ScheduleMissed
from domain.job import cancel as cancel_module
from domain.job import decisions as job_module
from domain.job import run_attempt as run_module
from domain.job import state as state_module
from domain.job import stranded as stranded_module
from domain.job import terminal_item
from domain.job.cancel import BulkChange
from domain.job.listing import JobFilter
from domain.job.state import Job
from domain.job.stranded import JobReconciler
from domain.job.submit import JobSubmission, NewJob
from domain.log import subscriptions as subscriptions_module
from domain.log.subscriptions import Subscription
from domain.values import JobId, JobStatus, rfc3339
from domain.webhook.delivery import DeliveryResult, DueHost, Webhook
from domain.webhook.send import WebhookCollector
from tests.simulation import readers as readers_module
from tests.simulation import workers as workers_module
from tests.simulation import world as world_module
from tests.simulation.broker import StoredItems
from tests.simulation.readers import Reader
from tests.support.fakes.batches import InMemoryBatchViews
from tests.support.fakes.event_log import InMemoryEventLog, InMemoryJobViews
from tests.support.fakes.job_queue import FakeJobQueue
from tests.support.fakes.webhooks import InMemoryWebhookStore
from worker import actors
from worker.engine.scheduling.waiting_queue import FairQueue, Turn, WaitingQueue
from worker.turn_scheduler import ActiveJobs

_change = BulkChange._change

Plant = Callable[[], AbstractContextManager[Any]]


def _commands_ignore_the_attempt() -> AbstractContextManager[Any]:
    return mock.patch.object(job_module, "_require_active_attempt", return_value=None)


def _an_end_is_not_final() -> AbstractContextManager[Any]:
    return mock.patch.object(job_module, "_require_open", return_value=None)


def _a_number_is_used_again() -> AbstractContextManager[Any]:
    decide = job_module._decide_attempt

    def reused(job: Job, proposal: job_module.AttemptProposal) -> tuple[Any, ...]:
        events = decide(job, proposal)
        if not isinstance(proposal, AttemptStarted):
            return events
        return (replace(proposal, attempt=max(1, job.attempt)),)

    return mock.patch.object(job_module, "_decide_attempt", reused)


def _an_attempt_continues_the_tokens_of_another_model() -> AbstractContextManager[Any]:
    def same(job: Job, fingerprint: str) -> int:
        del fingerprint
        return job.epoch

    return mock.patch.object(run_module, "epoch_after", same)


def _a_worker_takes_the_jobs_of_any_model() -> AbstractContextManager[Any]:
    return mock.patch.object(
        FakeJobQueue, "_table", lambda queue, priority, _: queue.tables.queues[priority]
    )


def _nothing_is_queued_again() -> AbstractContextManager[Any]:
    return mock.patch.object(JobReconciler, "reconcile", return_value=())


def _a_new_attempt_forgets_the_last_token() -> AbstractContextManager[Any]:
    read = terminal_item.read_emitted

    def forgetful(job: Job, backlog: Any) -> Any:
        emitted = read(job, backlog)
        return replace(emitted, token_ids=emitted.token_ids[:-1]) if emitted.token_ids else emitted

    return mock.patch.object(run_module, "read_emitted", forgetful)


def _the_end_is_published_before_it_is_recorded() -> AbstractContextManager[Any]:
    finish = run_module._finish

    def hasty(task: Any, outcome: Any, runner: Any) -> Any:
        body = Finished(stop_reason=outcome.stop_reason, usage=outcome.usage)
        run_module._publish(task, outcome.next_item, body, runner)
        return finish(task, outcome, runner)

    return mock.patch.object(run_module, "_finish", hasty)


def _a_failed_terminal_item_is_not_repeated() -> AbstractContextManager[Any]:
    return mock.patch.object(actors, "_repeat_end", return_value=None)


def _a_worker_that_lives_counts_as_dead() -> AbstractContextManager[Any]:
    return mock.patch.object(run_module, "end_own_attempt", lambda loaded, *_, **__: loaded)


def _an_outage_of_the_broker_counts_as_a_failure() -> AbstractContextManager[Any]:
    fewer = state_module._UNCOUNTED - {QueueUnavailable.code}
    return mock.patch.object(state_module, "_UNCOUNTED", fewer)


def _a_retry_leaves_the_old_items() -> AbstractContextManager[Any]:
    return mock.patch.object(StoredItems, "forget", return_value=None)


def _the_room_is_not_checked() -> AbstractContextManager[Any]:
    return mock.patch.object(world_module, "require_room", return_value=None)


def _two_keys_make_two_jobs() -> AbstractContextManager[Any]:
    submit = JobSubmission.submit

    def again(self: JobSubmission, command: Any, **options: Any) -> Any:
        return submit(self, replace(command, idempotency=None), **options)

    return mock.patch.object(JobSubmission, "submit", again)


def _a_unique_job_is_looked_up_before_the_append_only() -> AbstractContextManager[Any]:
    require = InMemoryEventLog._require_fresh

    def late(self: InMemoryEventLog, event: JobSubmitted, now: str) -> None:
        require(self, replace(event, unique=None), now)

    return mock.patch.object(InMemoryEventLog, "_require_fresh", late)


def _a_job_starts_after_its_time() -> AbstractContextManager[Any]:
    return mock.patch.object(Job, "is_rejected", new=False)


def _the_dead_hold_on_to_their_jobs() -> AbstractContextManager[Any]:
    return mock.patch.object(FakeJobQueue, "_requeue_of_dead", return_value=None)


def _a_nudge_is_believed() -> AbstractContextManager[Any]:
    def believed(job_id: JobId, active: ActiveJobs, log: Any) -> None:
        del log
        active.cancel(job_id, through=1 << 30)

    return mock.patch.object(workers_module, "cancel_if_recorded", believed)


def _readers_wait_for_the_broker() -> AbstractContextManager[Any]:
    return mock.patch.object(Reader, "look_into_log", return_value=None)


def _the_terminal_item_follows_lost_items() -> AbstractContextManager[Any]:
    return mock.patch.object(terminal_item, "_is_whole", return_value=True)


def _no_prompt_is_ever_due() -> AbstractContextManager[Any]:
    turns = FairQueue.turns

    def never_due(self: FairQueue[Any], now: float) -> list[Turn[Any]]:
        return [turn._replace(is_due=False) for turn in turns(self, now)]

    return mock.patch.object(FairQueue, "turns", never_due)


def _batch_work_takes_the_memory_of_interactive_work() -> AbstractContextManager[Any]:
    add = WaitingQueue.add

    def equal(self: WaitingQueue[Any], item: Any, *, cost: float, now: float, **_: object) -> None:
        add(self, item, cost=cost, now=now)

    return mock.patch.object(WaitingQueue, "add", equal)


def _new_prompts_pass_what_was_begun() -> AbstractContextManager[Any]:
    add = WaitingQueue.add

    def last(self: WaitingQueue[Any], item: Any, *, is_due: bool, **values: Any) -> None:
        del is_due
        add(self, item, **values)

    return mock.patch.object(WaitingQueue, "add", last)


def _a_batch_ends_with_open_lines() -> AbstractContextManager[Any]:
    return mock.patch.object(BatchTally, "open", 0)


def _lines_of_a_broken_round_are_forgotten() -> AbstractContextManager[Any]:
    def all_known(_: InMemoryBatchViews, batch_id: Any, *, first: int, limit: int) -> Any:
        del batch_id
        return dict.fromkeys(range(first, first + limit))

    return mock.patch.object(InMemoryBatchViews, "line_jobs", all_known)


def _a_refused_line_can_be_retried() -> AbstractContextManager[Any]:
    return mock.patch.object(job_module, "_REFUSED", frozenset())


def _the_place_in_the_log_is_stored_before_the_messages() -> AbstractContextManager[Any]:
    add = InMemoryWebhookStore.add

    def hasty(self: InMemoryWebhookStore, webhooks: Any, *, position: int) -> None:
        add(self, (), position=position)
        add(self, webhooks, position=position)

    return mock.patch.object(InMemoryWebhookStore, "add", hasty)


def _a_refused_message_counts_as_delivered() -> AbstractContextManager[Any]:
    settle = WebhookCollector.settle

    def content(self: WebhookCollector, webhook: Webhook, answer: DeliveryResult) -> Any:
        return settle(self, webhook, replace(answer, status=204, error=None))

    return mock.patch.object(WebhookCollector, "settle", content)


def _a_claim_is_never_given_up() -> AbstractContextManager[Any]:
    claim = InMemoryWebhookStore.claim

    def forever(
        self: InMemoryWebhookStore, due: DueHost, *, now: str, until: str, limit: int
    ) -> Any:
        del until
        return claim(self, due, now=now, until="9999", limit=limit)

    return mock.patch.object(InMemoryWebhookStore, "claim", forever)


def _held_jobs_are_released_at_once() -> AbstractContextManager[Any]:
    held = InMemoryJobViews.held

    def hasty(self: InMemoryJobViews, now: str, *, limit: int, after: int = 0) -> Any:
        del now
        return held(self, "9999", limit=limit, after=after)

    return mock.patch.object(InMemoryJobViews, "held", hasty)


def _the_end_of_a_held_job_is_left_to_its_process() -> AbstractContextManager[Any]:
    held = InMemoryJobViews.held

    def blind(self: InMemoryJobViews, now: str, *, limit: int, after: int = 0) -> Any:
        found = held(self, now, limit=limit, after=after)
        return tuple(job for job in found if not job.cancel_requested)

    return mock.patch.object(InMemoryJobViews, "held", blind)


def _a_scheduled_job_is_recorded_after_its_append() -> AbstractContextManager[Any]:
    submit = JobSubmission.submit

    def apart(self: JobSubmission, new: NewJob, **more: Any) -> Any:
        accepted = submit(self, replace(new, recorded_by=None), **more)
        if new.recorded_by is not None:
            own = new.recorded_by(accepted.job_id)
            self.log.append(own.stream, own.drafts, expected_version=own.expected_version)
        return accepted

    return mock.patch.object(JobSubmission, "submit", apart)


def _a_name_is_looked_up_before_the_append_only() -> AbstractContextManager[Any]:
    ids = (f"{SCHEDULE_PREFIX}{number}" for number in itertools.count())
    return mock.patch.object(schedules_module, "_fresh_id", side_effect=ids)


def _missed_instants_are_left_out() -> AbstractContextManager[Any]:
    events_of = schedules_module._outcomes

    def silent(*given: Any) -> Any:
        events = events_of(*given)
        kept = tuple(one for one in events if not isinstance(one, ScheduleMissed))
        return kept or events

    return mock.patch.object(schedules_module, "_outcomes", silent)


def _one_ended_job_is_enough() -> AbstractContextManager[Any]:
    return mock.patch.object(stranded_module, "_has_ended", lambda job: job is not None)


def _prompts_keep_their_places() -> AbstractContextManager[Any]:
    return mock.patch.object(stranded_module, "with_answers", lambda request, _: request)


def _what_came_due_in_a_sleep_is_overlooked() -> AbstractContextManager[Any]:
    held = InMemoryJobViews.held

    def recent(self: InMemoryJobViews, now: str, *, limit: int, after: int = 0) -> Any:
        begin = rfc3339(datetime.fromisoformat(now) - timedelta(hours=1))
        found = held(self, now, limit=limit, after=after)
        return tuple(job for job in found if (job.submitted.start_after or now) > begin)

    return mock.patch.object(InMemoryJobViews, "held", recent)


def _a_schedule_does_not_catch_up() -> AbstractContextManager[Any]:
    fire = ScheduleRunner._fire

    def punctual(self: ScheduleRunner, schedule: Schedule, now: datetime) -> None:
        if schedule.due_at is not None and schedule.due_at > rfc3339(now - timedelta(hours=4)):
            fire(self, schedule, now)

    return mock.patch.object(ScheduleRunner, "_fire", punctual)


def _a_delivery_counts_as_acknowledged() -> AbstractContextManager[Any]:
    advanced = subscriptions_module._advanced

    def hasty(reader: Subscription, event: Any, at: str) -> Subscription:
        after = advanced(reader, event, at)
        return replace(after, position=after.delivered)

    return mock.patch.object(subscriptions_module, "_advanced", hasty)


def _a_cancellation_of_many_leaves_held_jobs_out() -> AbstractContextManager[Any]:
    fewer = (JobStatus.QUEUED, JobStatus.RUNNING)
    return mock.patch.object(cancel_module, "_CANCELLABLE", fewer)


def _a_dry_run_changes_its_jobs() -> AbstractContextManager[Any]:
    return mock.patch.object(BulkChange, "_change", _change_for_real)


def _change_for_real(bulk: BulkChange, wanted: JobFilter, *how: Any) -> Any:
    return _change(replace(bulk, is_dry=False), wanted, *how)


def _an_offset_begins_the_answer_again() -> AbstractContextManager[Any]:
    begin = durable_module.begin_at

    def again(offset: Offset, tail: Offset) -> Offset:
        return replace(begin(offset, tail), units=0)

    return mock.patch.object(readers_module, "begin_at", again)


def _an_offset_forgets_the_end() -> AbstractContextManager[Any]:
    begin = durable_module.begin_at

    def endless(offset: Offset, tail: Offset) -> Offset:
        return replace(begin(offset, tail), has_end=False)

    return mock.patch.object(readers_module, "begin_at", endless)


def _a_fork_begins_anew() -> AbstractContextManager[Any]:
    return mock.patch.object(run_module, "with_inherited", lambda _, emitted, __: emitted)


def _a_fork_counts_inherited_tokens_as_published() -> AbstractContextManager[Any]:
    inherit = terminal_item.with_inherited

    def silent(*given: Any) -> Any:
        return replace(inherit(*given), published=None)

    return mock.patch.object(run_module, "with_inherited", silent)


#: Bugs that a week finds, and a short life without its times does not.
PLANTED_IN_WEEKS: Mapping[str, Plant] = {
    "what came due in a sleep is overlooked": _what_came_due_in_a_sleep_is_overlooked,
    "a schedule does not catch up": _a_schedule_does_not_catch_up,
    "a delivery counts as acknowledged": _a_delivery_counts_as_acknowledged,
    "a scheduled job is recorded after its append": _a_scheduled_job_is_recorded_after_its_append,
}

PLANTED: Mapping[str, Plant] = {
    "the attempt of a command is not checked": _commands_ignore_the_attempt,
    "a job that has ended can be changed": _an_end_is_not_final,
    "an attempt number is used again": _a_number_is_used_again,
    "an attempt continues the tokens of another model": (
        _an_attempt_continues_the_tokens_of_another_model
    ),
    "a worker takes the jobs of any model": _a_worker_takes_the_jobs_of_any_model,
    "lost jobs are not queued again": _nothing_is_queued_again,
    "a new attempt forgets the last token": _a_new_attempt_forgets_the_last_token,
    "the end is published before it is recorded": _the_end_is_published_before_it_is_recorded,
    "a failed terminal item is not repeated": _a_failed_terminal_item_is_not_repeated,
    "a worker that lives counts as dead": _a_worker_that_lives_counts_as_dead,
    "an outage of the broker counts as a failure": _an_outage_of_the_broker_counts_as_a_failure,
    "a retry leaves the old items": _a_retry_leaves_the_old_items,
    "the queue's limit is not checked": _the_room_is_not_checked,
    "idempotency keys are ignored": _two_keys_make_two_jobs,
    "a unique job is looked up before the append only": (
        _a_unique_job_is_looked_up_before_the_append_only
    ),
    "a job starts after its time": _a_job_starts_after_its_time,
    "what a dead worker held stays in its hand": _the_dead_hold_on_to_their_jobs,
    "a nudge is believed without the log": _a_nudge_is_believed,
    "readers do not look into the log": _readers_wait_for_the_broker,
    "an end follows lost items": _the_terminal_item_follows_lost_items,
    "a due prompt holds no other back": _no_prompt_is_ever_due,
    "new prompts pass what was begun": _new_prompts_pass_what_was_begun,
    "batch work takes memory first": _batch_work_takes_the_memory_of_interactive_work,
    "a batch ends with open lines": _a_batch_ends_with_open_lines,
    "lines of a round that a crash broke are forgotten": _lines_of_a_broken_round_are_forgotten,
    "a refused line can be retried": _a_refused_line_can_be_retried,
    "the place in the log is stored before the messages": (
        _the_place_in_the_log_is_stored_before_the_messages
    ),
    "a refused message counts as delivered": _a_refused_message_counts_as_delivered,
    "the claim of a dead sender is never given up": _a_claim_is_never_given_up,
    "held jobs are released at once": _held_jobs_are_released_at_once,
    "one ended job is enough": _one_ended_job_is_enough,
    "prompts keep their places": _prompts_keep_their_places,
    "a name is looked up before the append only": _a_name_is_looked_up_before_the_append_only,
    "missed instants are left out": _missed_instants_are_left_out,
    "a cancellation of many leaves held jobs out": _a_cancellation_of_many_leaves_held_jobs_out,
    "a dry run changes its jobs": _a_dry_run_changes_its_jobs,
    "an offset begins the answer again": _an_offset_begins_the_answer_again,
    "an offset forgets the end": _an_offset_forgets_the_end,
    "a fork begins anew": _a_fork_begins_anew,
    "a fork counts inherited tokens as published": _a_fork_counts_inherited_tokens_as_published,
    "the end of a held job is left to its process": _the_end_of_a_held_job_is_left_to_its_process,
}
