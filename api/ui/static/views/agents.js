// The agents of the latest jobs; one of them with its contexts, its hits and its misses.
import { count, clock, percent, share } from "../core/format.js";
import { go, link } from "../core/hash.js";
import { shortened } from "../core/plain_text.js";
import { html, useMemo } from "../core/preact.js";
import { useResource } from "../core/resource.js";
import { AgentDetail } from "../parts/agent_detail.js";
import { Failure } from "../parts/notices.js";
import { WindowedList } from "../parts/windowed_list.js";

const JOBS = 100;
const EVERY_MS = 5000;
const OPEN = new Set(["queued", "running"]);

const COLUMNS = [
  { name: "agent", title: "Agent", width: "minmax(9rem, 2fr)", cell: (one) => html`<a href=${link("agents", [one.id])}>${shortened(one.id)}</a>` },
  { name: "jobs", title: "Jobs", width: "5rem", numeric: true, cell: (one) => count(one.jobs) },
  { name: "open", title: "Open", width: "4rem", numeric: true, narrow: false, cell: (one) => count(one.open) },
  { name: "prompt", title: "Prompt", width: "6rem", numeric: true, narrow: false, cell: (one) => count(one.prompt) },
  { name: "cached", title: "Cached", width: "5rem", numeric: true, cell: (one) => percent(share(one.cached, one.prompt)) },
  { name: "output", title: "Output", width: "6rem", numeric: true, narrow: false, cell: (one) => count(one.output) },
  { name: "seen", title: "Latest job", width: "9rem", numeric: true, narrow: false, cell: (one) => clock(one.seen) },
];

export default function Agents({ route }) {
  const [id] = route.parts;
  return html`<div class="view">${id ? html`<${AgentDetail} key=${id} id=${id} />` : html`<${AgentList} />`}</div>`;
}

function AgentList() {
  const jobs = useResource("v1/jobs", { limit: JOBS }, { everyMs: EVERY_MS });
  const registered = useResource("v1/agents", { limit: 100 }, { everyMs: EVERY_MS });
  const rows = useMemo(
    () => agentsOf(jobs.data?.data ?? [], registered.data?.data ?? []),
    [jobs.data, registered.data],
  );
  return html`
    <h1 class="visually-hidden">Agents</h1>
    <${Failure} error=${jobs.error ?? registered.error} />
    <p class="muted note">Agents of the latest ${count(JOBS)} jobs, and those created here.</p>
    <${WindowedList} label="Agents" rows=${rows} columns=${COLUMNS} keyOf=${(one) => one.id}
      onOpen=${(one) => go(link("agents", [one.id]))} empty="No agent has sent a job yet." />`;
}

/** Return a row for each agent, the one of the newest job first. */
function agentsOf(jobs, registered) {
  const rows = new Map();
  const rowOf = (id, seen) => {
    if (!rows.has(id)) rows.set(id, { id, seen, jobs: 0, open: 0, prompt: 0, cached: 0, output: 0 });
    return rows.get(id);
  };
  for (const job of jobs) {
    if (job.agent_id === null) continue;
    const row = rowOf(job.agent_id, job.created_at);
    row.jobs += 1;
    row.open += OPEN.has(job.status) ? 1 : 0;
    row.prompt += job.usage.prompt_tokens;
    row.cached += job.usage.cached_tokens;
    row.output += job.usage.completion_tokens;
  }
  for (const agent of registered) rowOf(agent.id, agent.created_at);
  return [...rows.values()];
}
