// Running, waiting and finished jobs of the overview.
import { cancelJob } from "../core/actions.js";
import { causeText, reasonText } from "../core/causes.js";
import { ago, count, duration, percent, rate, rest, seconds, share, short, shortId } from "../core/format.js";
import { go, link } from "../core/hash.js";
import { shortened } from "../core/plain_text.js";
import { html } from "../core/preact.js";
import { ConfirmButton } from "./confirm_button.js";
import { Progress } from "./meter.js";
import { Status } from "./status.js";
import { WindowedList } from "./windowed_list.js";

const PHASES = { start: "starts", restore: "restores", prefill: "reads", decode: "writes" };

const keyOf = (row) => row.job;
const open = (row) => go(link("jobs", [row.job]));
const jobCell = (row) => html`<a class="id" href=${link("jobs", [row.job])} title=${row.job}>${shortId(row.job)}</a>`;
const agentCell = (row) => (row.agent ? html`<a class="plain" href=${link("agents", [row.agent])}>${shortened(row.agent)}</a>` : html`<span class="muted">–</span>`);
const JOB = { name: "job", title: "Job", width: "4rem", cell: jobCell };
const AGENT = { name: "agent", title: "Agent", width: "minmax(5rem, 1fr)", narrow: "minmax(0, 1fr)", cell: agentCell };
const cancelCell = (row) => html`<${ConfirmButton} label="Cancel" confirm="Stop it?" name=${`job ${row.job}`}
  disabled=${row.cancel_requested} action=${() => cancelJob(row.job)} />`;
const CANCEL = { name: "cancel", title: html`<span class="visually-hidden">Cancel</span>`, width: "5rem", narrow: "4.25rem", cell: cancelCell };

/** The phase of a running row, with its progress. */
export function phaseCell(row) {
  const retried = row.attempt > 1 ? ` · attempt ${row.attempt}` : "";
  if (row.phase === "decode") {
    const done = share(row.generated_tokens, row.max_tokens) ?? 0;
    return html`<span class="phase"><span>writes${retried}</span><${Progress} value=${done} tone="decode" label="Share of the longest answer" /></span>`;
  }
  const done = share(row.read_tokens, row.prompt_tokens) ?? 0;
  const text = row.phase === "start" ? "" : ` ${percent(done)}`;
  return html`<span class="phase"><span>${PHASES[row.phase]}${text}${retried}</span>
    <${Progress} value=${done} tone=${row.phase === "restore" ? "restored" : "prefill"} label="Share of the prompt" /></span>`;
}

const RUNNING = [
  JOB,
  AGENT,
  { name: "phase", title: "Phase", width: "minmax(11rem, 1.5fr)", narrow: "minmax(0, 1.3fr)", cell: phaseCell },
  { name: "prompt", title: "Prompt", width: "4.5rem", numeric: true, narrow: false, cell: (row) => count(row.prompt_tokens) },
  { name: "cached", title: "Cached", width: "4rem", numeric: true, narrow: false, cell: (row) => percent(share(row.cached_tokens, row.prompt_tokens)) },
  { name: "tokens", title: "Tokens", width: "4rem", numeric: true, narrow: false, cell: (row) => count(row.generated_tokens) },
  { name: "rate", title: "tok/s", width: "3.5rem", numeric: true, narrow: false, cell: (row) => rate(row.tokens_per_s) },
  { name: "eta", title: "Ends in", width: "8rem", numeric: true, narrow: false, cell: (row) => rest(row.eta_s, row.eta_most_s) },
  CANCEL,
];

const WAITING = [
  { name: "position", title: "#", width: "2.5rem", narrow: "1.5rem", numeric: true, cell: (row) => (row.position === null ? "–" : row.position + 1) },
  JOB,
  AGENT,
  { name: "reason", title: "Waits for", width: "minmax(7rem, 1.5fr)", narrow: "minmax(0, 1.3fr)", cell: (row) => (row.reason === "model" ? `model ${shortened(row.model)}` : reasonText(row.reason)) },
  { name: "eta", title: "Starts in", width: "4.5rem", numeric: true, narrow: false, cell: (row) => seconds(row.eta_s) },
  CANCEL,
];

function missCell({ miss, outcome, cached_tokens: cached }) {
  if (!miss) return cached > 0 || outcome !== "completed" ? "" : html`<span class="muted">nothing similar before</span>`;
  const text = `${causeText(miss.cause)}${miss.place ? ` (${miss.place})` : ""}`;
  return html`<span title=${`${text}: ${count(miss.missed_tokens)} tokens were read again`}>${text}</span>`;
}

const FINISHED = [
  JOB,
  { ...AGENT, narrow: false },
  { name: "outcome", title: "Outcome", width: "6.5rem", cell: (row) => html`<${Status} value=${row.outcome} />` },
  { name: "cached", title: "Cached / prompt", width: "7rem", narrow: "minmax(0, 1fr)", numeric: true, cell: (row) => `${short(row.cached_tokens)} / ${short(row.prompt_tokens)}` },
  { name: "first", title: "First token", width: "4.75rem", numeric: true, narrow: false, cell: (row) => duration(row.first_token_ms) },
  { name: "miss", title: "Why the cache missed", width: "minmax(8rem, 1.5fr)", narrow: false, cell: missCell },
  { name: "ended", title: "Ended", width: "5.5rem", numeric: true, narrow: false, cell: (row) => ago(row.finished_at) },
];

function Table({ title, rows, total, columns, minWidth, empty }) {
  // Jobs that wait inside a worker are listed, but do not count as running.
  const all = Math.max(total ?? 0, rows.length);
  const more = all > rows.length ? ` · the first ${count(rows.length)} are listed` : "";
  return html`
    <section class="table" aria-label=${title}>
      <h2>${title} <span class="muted">${count(all)}${more}</span></h2>
      <${WindowedList} label=${title} rows=${rows} keyOf=${keyOf} columns=${columns} onOpen=${open} minWidth=${minWidth} empty=${empty} />
    </section>`;
}

export const Running = ({ rows, total }) =>
  html`<${Table} title="Running" rows=${rows} total=${total} columns=${RUNNING} minWidth="55rem" empty="No job runs." />`;

export const Waiting = ({ rows, total }) =>
  html`<${Table} title="Waiting" rows=${rows} total=${total} columns=${WAITING} minWidth="33rem" empty="No job waits." />`;

export const Finished = ({ rows }) =>
  html`<${Table} title="Finished" rows=${rows} columns=${FINISHED} minWidth="46rem" empty="No job has ended yet." />`;
