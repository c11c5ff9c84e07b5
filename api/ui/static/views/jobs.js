// Every job, newest first: pages are fetched as the list is scrolled.
import { get } from "../core/api.js";
import { clock, count, duration, shortId } from "../core/format.js";
import { go, link } from "../core/hash.js";
import { html, useCallback, useEffect, useRef, useState } from "../core/preact.js";
import { Failure } from "../parts/notices.js";
import { Status } from "../parts/status.js";
import { WindowedList } from "../parts/windowed_list.js";
import { Job } from "./job.js";

const PAGE = 100;

const COLUMNS = [
  { name: "job", title: "Job", width: "4rem", cell: (job) => html`<a class="id" title=${job.id} href=${link("jobs", [job.id])}>${shortId(job.id)}</a>` },
  { name: "status", title: "Status", width: "7rem", cell: (job) => html`<${Status} value=${job.status} />` },
  { name: "agent", title: "Agent", width: "minmax(6rem, 1fr)", narrow: "minmax(0, 1fr)", cell: (job) => job.agent_id ?? "" },
  { name: "model", title: "Model", width: "minmax(6rem, 1fr)", narrow: false, cell: (job) => job.answered_by ?? job.model },
  { name: "prompt", narrow: false, title: "Prompt", width: "5rem", numeric: true, cell: (job) => count(job.usage.prompt_tokens) },
  { name: "cached", narrow: false, title: "Cached", width: "5rem", numeric: true, cell: (job) => count(job.usage.cached_tokens) },
  { name: "output", narrow: false, title: "Output", width: "5rem", numeric: true, cell: (job) => count(job.usage.completion_tokens) },
  { name: "first", narrow: false, title: "First token", width: "6rem", numeric: true, cell: (job) => duration(job.timings.first_token_ms) },
  { name: "accepted", title: "Accepted", width: "10rem", narrow: "5rem", numeric: true, cell: (job) => clock(job.created_at) },
];

/** The list, or the job that the address names. */
export default function Jobs({ route }) {
  const [id] = route.parts;
  return id ? html`<${Job} key=${id} id=${id} />` : html`<${All} />`;
}

function All() {
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
