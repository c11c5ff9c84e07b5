// One job: where its time went, why the cache missed, its events and, on request, its texts.
import { cancelJob, retryJob } from "../core/actions.js";
import { clock, count, duration, percent, rate, rest, share } from "../core/format.js";
import { link } from "../core/hash.js";
import { shortened } from "../core/plain_text.js";
import { html, useEffect, useState } from "../core/preact.js";
import { useOverview } from "../core/overview.js";
import { useResource } from "../core/resource.js";
import { openStream } from "../core/stream.js";
import { CacheStory } from "../parts/cache_story.js";
import { ConfirmButton } from "../parts/confirm_button.js";
import { CopyLine } from "../parts/copy_line.js";
import { EventList } from "../parts/event_list.js";
import { JobText } from "../parts/job_text.js";
import { phaseCell } from "../parts/job_tables.js";
import { Failure } from "../parts/notices.js";
import { Status } from "../parts/status.js";
import { Timeline } from "../parts/timeline.js";

const ENDED = new Set(["completed", "failed", "cancelled", "expired"]);
const RETRIED = new Set(["failed", "cancelled", "expired"]);

export function Job({ id }) {
  const path = `v1/jobs/${encodeURIComponent(id)}`;
  const job = useResource(path);
  const timeline = useResource(`${path}/timeline`);
  const events = useJobEvents(id, () => {
    job.reload();
    timeline.reload();
  });
  // Of the overview; jobs beyond its first rows have none.
  const live = useOverview((now) => now?.running.find((row) => row.job === id) ?? null);
  if (!job.data) return html`<${Failure} error=${job.error} />`;
  const one = job.data;
  const ended = ENDED.has(one.status);
  const row = ended ? null : live;
  return html`
    <p class="crumbs"><a href=${link("jobs")}>Jobs</a></p>
    <div class="job">
      <header class="job-head">
        <h1><code>${one.id}</code></h1>
        <${Status} value=${one.cancel_requested && !ended ? "cancelling" : one.status} />
        <span class="job-actions">
          ${!ended && html`<${ConfirmButton} label="Cancel" confirm="Stop it?" name="this job" disabled=${one.cancel_requested}
            action=${() => cancelJob(id).then(job.reload)} />`}
          ${RETRIED.has(one.status) && html`<${ConfirmButton} label="Retry" confirm="Run it again?" name="this job" action=${() => retryJob(id)} />`}
        </span>
      </header>
      ${row && html`<${Live} row=${row} />`}
      <${Failure} error=${job.error} />
      ${one.error && html`<p class="failure"><b>${one.error.code}</b> ${one.error.message}</p>`}
      <${Facts} job=${one} row=${row} ended=${ended} successors=${timeline.data?.successors ?? []} />
      <${Timeline} timeline=${timeline.data} error=${timeline.error} cached=${one.usage.cached_tokens} />
      <${CacheStory} cache=${one.cache} />
      <${JobText} job=${one} ended=${ended} />
      ${one.status === "completed" && one.kind !== "embedding" && html`<section aria-label="Replay"><h2>Compute it again and compare</h2>
        <${CopyLine} text=${`semantic replay ${one.id} --verify`} /></section>`}
      <${EventList} events=${events} />
    </div>`;
}

/** What a running job does now. */
function Live({ row }) {
  const read = row.phase === "decode" ? [] : [`${count(row.read_tokens)} of ${count(row.prompt_tokens)} tokens read`];
  const written = [`${count(row.generated_tokens)} tokens`, `${rate(row.tokens_per_s)} tok/s`];
  const figures = [...(read.length ? read : written), `ends in ${rest(row.eta_s, row.eta_most_s)}`];
  return html`<div class="panel live">${phaseCell(row)}<span class="muted">${figures.join(" · ")}</span></div>`;
}

/** Return a link to a job that comes before or after this one. */
const jobLink = (job, text) => html`<a key=${job} class="id" title=${job} href=${link("jobs", [job])}>${shortened(text, 40)}</a> `;

/** The sums of a job are recorded at its end; before it `row` has those of now. */
function Facts({ job, row, ended, successors }) {
  const { timings } = job;
  const now = { prompt_tokens: row?.prompt_tokens, cached_tokens: row?.cached_tokens, completion_tokens: row?.generated_tokens };
  const usage = ended || job.usage.completion_tokens > 0 ? job.usage : now;
  const spent = timings.decode_ms / 1000;
  const facts = [
    ["Agent", job.agent_id ? html`<a href=${link("agents", [job.agent_id])}>${shortened(job.agent_id)}</a>` : "–"],
    ["Model", shortened(job.answered_by ?? job.bound_model ?? job.model)],
    ["Protocol", `${job.protocol}, ${job.priority}`],
    ["Kind", job.kind],
    ["Accepted", clock(job.created_at)],
    ...(job.after.length > 0 ? [["After", job.after.map((one) => jobLink(one.job, one.name))]] : []),
    ...(successors.length > 0 ? [["Followed by", successors.map((one) => jobLink(one.job, one.job))]] : []),
    ...(job.start_after ? [["Starts after", clock(job.start_after)]] : []),
    ["Prompt", `${count(usage.prompt_tokens)} tokens`],
    ["From the cache", `${count(usage.cached_tokens)} (${percent(share(usage.cached_tokens, usage.prompt_tokens))})`],
    ["Answer", `${count(usage.completion_tokens)} tokens${usage.reasoning_tokens ? `, ${count(usage.reasoning_tokens)} of reasoning` : ""}`],
    ["Rate", spent > 0 ? `${rate((usage.completion_tokens - 1) / spent)} tok/s` : "–"],
    ["First token", duration(timings.first_token_ms || null)],
    ["Ended by", job.stop_reason ?? "–"],
  ];
  return html`<dl class="facts panel">${facts.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

/** Return the events of a job as they are appended; `onNews` is called after each batch. */
function useJobEvents(id, onNews) {
  const [events, setEvents] = useState([]);
  useEffect(() => {
    setEvents([]);
    let timer = null;
    const stream = openStream("v1/events", {
      query: { stream: id },
      onEvent: ({ data }) => {
        if (!data?.position) return;
        setEvents((old) => (old.some((one) => one.position === data.position) ? old : [...old, data]));
        timer ??= setTimeout(() => {
          timer = null;
          onNews();
        }, 100);
      },
    });
    return () => {
      clearTimeout(timer);
      stream.close();
    };
  }, [id]);
  return events;
}
