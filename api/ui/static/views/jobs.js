// Every job, newest first: pages are fetched as the list is scrolled.
import { get } from "../core/api.js";
import { clock, count, duration, shortId } from "../core/format.js";
import { go, link } from "../core/hash.js";
import { html, useCallback, useEffect, useRef, useState } from "../core/preact.js";
import { Failure } from "../parts/notices.js";
import { Status } from "../parts/status.js";
import { WindowedList } from "../parts/windowed_list.js";

const PAGE = 100;

const COLUMNS = [
  { name: "job", title: "Job", width: "9rem", cell: (job) => html`<a href=${link("jobs", [job.id])}>${shortId(job.id)}</a>` },
  { name: "status", title: "Status", width: "7rem", cell: (job) => html`<${Status} value=${job.status} />` },
  { name: "agent", title: "Agent", width: "minmax(6rem, 1fr)", cell: (job) => job.agent_id ?? "" },
  { name: "model", title: "Model", width: "minmax(6rem, 1fr)", cell: (job) => job.answered_by ?? job.model },
  { name: "prompt", title: "Prompt", width: "5rem", numeric: true, cell: (job) => count(job.usage.prompt_tokens) },
  { name: "cached", title: "Cached", width: "5rem", numeric: true, cell: (job) => count(job.usage.cached_tokens) },
  { name: "output", title: "Output", width: "5rem", numeric: true, cell: (job) => count(job.usage.completion_tokens) },
  { name: "first", title: "First token", width: "6rem", numeric: true, cell: (job) => duration(job.timings.first_token_ms) },
  { name: "accepted", title: "Accepted", width: "10rem", numeric: true, cell: (job) => clock(job.created_at) },
];

export default function Jobs() {
  const [jobs, error, more] = useJobs();
  return html`
    <h1 class="visually-hidden">Jobs</h1>
    <${Failure} error=${error} />
    <${WindowedList}
      label="Jobs"
      minWidth="62rem"
      columns=${COLUMNS}
      rows=${jobs}
      keyOf=${(job) => job.id}
      onOpen=${(job) => go(link("jobs", [job.id]))}
      onEnd=${more}
    />`;
}

/** Return the jobs fetched so far, the last failure, and a function that fetches the next page. */
function useJobs() {
  const [jobs, setJobs] = useState([]);
  const [error, setError] = useState(null);
  const next = useRef({ before: "", busy: false, done: false });
  const more = useCallback(async () => {
    const page = next.current;
    if (page.busy || page.done) return;
    page.busy = true;
    try {
      const list = await get("v1/jobs", { limit: PAGE, before: page.before });
      page.done = !list.has_more;
      page.before = list.next_before ?? "";
      setJobs((old) => [...old, ...list.data]);
      setError(null);
    } catch (failure) {
      setError(failure);
    } finally {
      page.busy = false;
    }
  }, []);
  useEffect(() => {
    more();
  }, [more]);
  return [jobs, error, more];
}
