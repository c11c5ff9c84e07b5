// All agents, the latest active first; one of them with its contexts, its hits and its misses.
import { get } from "../core/api.js";
import { clock, count, percent, share } from "../core/format.js";
import { go, link } from "../core/hash.js";
import { shortened } from "../core/plain_text.js";
import { html, useCallback, useMemo, useRef, useState } from "../core/preact.js";
import { useResource } from "../core/resource.js";
import { AgentDetail } from "../parts/agent_detail.js";
import { Failure } from "../parts/notices.js";
import { WindowedList } from "../parts/windowed_list.js";

const PAGE = 100;
const EVERY_MS = 5000;
const CAUSES = { diverged: "the prompt differs", gone: "blocks deleted", model_changed: "another model" };

const COLUMNS = [
  { name: "agent", title: "Agent", width: "minmax(9rem, 2fr)", cell: (one) => html`<a href=${link("agents", [one.id])}>${shortened(one.id)}</a>` },
  { name: "jobs", title: "Jobs", width: "5rem", numeric: true, cell: (one) => count(one.activity.jobs) },
  { name: "open", title: "Open", width: "4rem", numeric: true, narrow: false, cell: (one) => count(one.activity.open_jobs) },
  { name: "context", title: "Context", width: "6rem", numeric: true, narrow: false, cell: (one) => count(one.activity.context_tokens) },
  { name: "cached", title: "Cached", width: "5rem", numeric: true, cell: (one) => percent(share(one.activity.cached_tokens, one.activity.prompt_tokens)) },
  { name: "hits", title: "Hits", width: "4rem", numeric: true, narrow: false, cell: (one) => count(one.activity.hits) },
  { name: "misses", title: "Misses", width: "minmax(5rem, 1fr)", narrow: false, cell: (one) => missesOf(one.activity.misses) },
  { name: "output", title: "Output", width: "6rem", numeric: true, narrow: false, cell: (one) => count(one.activity.completion_tokens) },
  { name: "seen", title: "Last seen", width: "9rem", numeric: true, narrow: false, cell: (one) => clock(one.activity.last_seen) },
];

export default function Agents({ route }) {
  const [id] = route.parts;
  return html`<div class="view">${id ? html`<${AgentDetail} key=${id} id=${id} />` : html`<${AgentList} />`}</div>`;
}

function AgentList() {
  const [rows, error, more] = useAgents();
  return html`
    <h1 class="visually-hidden">Agents</h1>
    <${Failure} error=${error} />
    <${WindowedList} label="Agents" rows=${rows} columns=${COLUMNS} keyOf=${(one) => one.id} minWidth="60rem"
      onOpen=${(one) => go(link("agents", [one.id]))} onEnd=${more} empty="No agent has sent a job yet." />`;
}

/** Return the agents so far, the last failure, and what fetches the next page. */
function useAgents() {
  const first = useResource("v1/agents", { seen: true, limit: PAGE }, { everyMs: EVERY_MS });
  const [older, setOlder] = useState([]);
  const [failure, setFailure] = useState(null);
  const next = useRef({ busy: false, before: undefined });
  const start = first.data?.next_before;
  const more = useCallback(async () => {
    const page = next.current;
    const before = page.before === undefined ? start : page.before;
    if (page.busy || !before) return;
    page.busy = true;
    try {
      const found = await get("v1/agents", { seen: true, limit: PAGE, before });
      page.before = found.next_before;
      setOlder((old) => [...old, ...found.data]);
      setFailure(null);
    } catch (error) {
      setFailure(error);
    } finally {
      page.busy = false;
    }
  }, [start]);
  // An agent that becomes active moves to the first page.
  const rows = useMemo(() => [...byId([...older, ...(first.data?.data ?? [])]).values()].sort(latestFirst), [older, first.data]);
  return [rows, first.error ?? failure, more];
}

const byId = (agents) => new Map(agents.map((one) => [one.id, one]));
const latestFirst = (one, other) => (one.activity.last_seen < other.activity.last_seen ? 1 : -1);

function missesOf(misses) {
  const named = Object.entries(misses).filter(([, number]) => number > 0);
  return named.map(([cause, number]) => `${count(number)} ${CAUSES[cause] ?? shortened(cause, 20)}`).join(", ");
}
