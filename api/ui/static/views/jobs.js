// Every job, newest first: pages are fetched as the list is scrolled.
import { get } from "../core/api.js";
import { clock, count, duration, shortId } from "../core/format.js";
import { go, link, setQuery } from "../core/hash.js";
import { shortened } from "../core/plain_text.js";
import { html, useCallback, useEffect, useRef, useState } from "../core/preact.js";
import { Failure } from "../parts/notices.js";
import { Status } from "../parts/status.js";
import { WindowedList } from "../parts/windowed_list.js";
import { Job } from "./job.js";

const PAGE = 100;
const REFRESH_MS = 3_000;
const STATES = ["held", "queued", "running", "completed", "failed", "cancelled", "expired"];

const COLUMNS = [
  { name: "job", title: "Job", width: "4rem", cell: (job) => html`<a class="id" title=${job.id} href=${link("jobs", [job.id])}>${shortId(job.id)}</a>` },
  { name: "status", title: "Status", width: "7rem", cell: (job) => html`<${Status} value=${job.status} />` },
  { name: "agent", title: "Agent", width: "minmax(6rem, 1fr)", narrow: "minmax(0, 1fr)", cell: (job) => shortened(job.agent_id ?? "") },
  { name: "model", title: "Model", width: "minmax(6rem, 1fr)", narrow: false, cell: (job) => shortened(job.answered_by ?? job.model) },
  { name: "prompt", narrow: false, title: "Prompt", width: "5rem", numeric: true, cell: (job) => count(job.usage.prompt_tokens) },
  { name: "cached", narrow: false, title: "Cached", width: "5rem", numeric: true, cell: (job) => count(job.usage.cached_tokens) },
  { name: "output", narrow: false, title: "Output", width: "5rem", numeric: true, cell: (job) => count(job.usage.completion_tokens) },
  { name: "first", narrow: false, title: "First token", width: "6rem", numeric: true, cell: (job) => duration(job.timings.first_token_ms || null) },
  { name: "accepted", title: "Accepted", width: "10rem", narrow: "5rem", numeric: true, cell: (job) => clock(job.created_at) },
];

/** The list, or the job that the address names. */
export default function Jobs({ route }) {
  const [id] = route.parts;
  return id ? html`<${Job} key=${id} id=${id} />` : html`<${All} query=${route.query} />`;
}

function All({ query }) {
  const filters = { status: query.get("status") ?? "", agent_id: query.get("agent_id") ?? "" };
  const { jobs, error, more } = useJobs(filters);
  return html`
    <h1 class="visually-hidden">Jobs</h1>
    <form class="filters" role="search" aria-label="Jobs" onSubmit=${(event) => event.preventDefault()}>
      <label>Status <select value=${filters.status} onChange=${(event) => setQuery({ status: event.target.value })}>
        <option value="">all</option>
        ${STATES.map((state) => html`<option key=${state} value=${state}>${state}</option>`)}
      </select></label>
      <label>Agent <input type="search" value=${filters.agent_id} onChange=${(event) => setQuery({ agent_id: event.target.value.trim() })} /></label>
    </form>
    <${Failure} error=${error} />
    <${WindowedList}
      label="Jobs"
      minWidth="62rem"
      columns=${COLUMNS}
      rows=${jobs}
      keyOf=${keyOf}
      onOpen=${(job) => go(link("jobs", [job.id]))}
      onEnd=${more}
    />`;
}

const keyOf = (job) => job.id;

/**
 * Return the jobs that fit, `{jobs, error, more}`: `more` fetches the next older page, and the
 * newest page is fetched in a rhythm.
 */
function useJobs(filters) {
  const [state, setState] = useState({ jobs: [], error: null });
  const text = JSON.stringify(filters);
  const pages = useRef({ before: "", busy: false, done: true });

  const fetchPage = useCallback(async (before, merge) => {
    const mine = pages.current;
    if (mine.busy) {
      mine.waits ||= merge === appended;
      return;
    }
    mine.busy = true;
    try {
      const list = await get("v1/jobs", { limit: PAGE, before, ...JSON.parse(text) });
      if (pages.current === mine) setState((old) => ({ jobs: merge(old.jobs, list, mine), error: null }));
    } catch (error) {
      mine.denied = error.denied;
      if (pages.current === mine) setState((old) => ({ ...old, error }));
    } finally {
      mine.busy = false;
    }
    if (mine.waits && !mine.done && pages.current === mine) {
      mine.waits = false;
      fetchPage(mine.before, appended);
    }
  }, [text]);

  const more = useCallback(() => {
    if (!pages.current.done) fetchPage(pages.current.before, appended);
  }, [fetchPage]);

  useEffect(() => {
    pages.current = { before: "", busy: false, done: false };
    setState({ jobs: [], error: null });
    fetchPage("", appended);
    const timer = setInterval(() => document.hidden || pages.current.denied || fetchPage("", refreshed), REFRESH_MS);
    return () => clearInterval(timer);
  }, [fetchPage]);
  return { ...state, more };
}

function appended(jobs, list, pages) {
  pages.done = !list.has_more;
  pages.before = list.next_before ?? "";
  return [...jobs, ...list.data];
}

/** Put the newest page in place of the same jobs; begin anew where it does not reach them. */
function refreshed(jobs, list, pages) {
  const known = new Set(jobs.slice(0, 2 * PAGE).map(keyOf));
  const last = list.data.at(-1);
  if (jobs.length > 0 && last && !known.has(last.id) && list.has_more) return appended([], list, pages);
  const fresh = new Map(list.data.map((job) => [job.id, job]));
  const kept = jobs.map((job) => fresh.get(job.id) ?? job);
  return [...list.data.filter((job) => !known.has(job.id)), ...kept];
}
