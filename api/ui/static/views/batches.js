// Batches of both dialects with their progress.
import { change } from "../core/api.js";
import { announce } from "../core/announce.js";
import { clock, count, shortId } from "../core/format.js";
import { html, useMemo, useState } from "../core/preact.js";
import { useResource } from "../core/resource.js";
import { ConfirmButton } from "../parts/confirm_button.js";
import { Failure } from "../parts/notices.js";
import { Status } from "../parts/status.js";
import { WindowedList } from "../parts/windowed_list.js";

const EVERY_MS = 3000;
const LIMIT = 100;
const TONES = { in_progress: "run", validating: "wait", finalizing: "run", completed: "good", ended: "good", failed: "bad", expired: "bad" };
const OPEN = new Set(["in_progress", "validating"]);

export default function Batches() {
  const openai = useResource("v1/batches", { limit: LIMIT }, { everyMs: EVERY_MS });
  const anthropic = useResource("v1/messages/batches", { limit: LIMIT }, { everyMs: EVERY_MS });
  const [failure, setFailure] = useState(null);
  const rows = useMemo(() => merged(openai.data, anthropic.data), [openai.data, anthropic.data]);
  const cancel = async (row) => {
    try {
      await change("POST", `${row.path}/cancel`);
      setFailure(null);
      announce("The batch is being cancelled.");
    } catch (error) {
      setFailure(error);
    }
    openai.reload();
    anthropic.reload();
  };
  return html`<div class="view">
    <h1 class="visually-hidden">Batches</h1>
    <${Failure} error=${failure ?? openai.error ?? anthropic.error} />
    <${WindowedList} label="Batches" rows=${rows} columns=${columns(cancel)} keyOf=${(row) => row.path}
      minWidth="56rem" empty="No batch was submitted." /></div>`;
}

const columns = (cancel) => [
  { name: "batch", title: "Batch", width: "9rem", cell: (row) => html`<span title=${row.id}>${shortId(row.id)}</span>` },
  { name: "status", title: "Status", width: "8rem", cell: (row) => html`<${Status} value=${row.status.replaceAll("_", " ")} tone=${TONES[row.status]} />` },
  { name: "progress", title: "Progress", width: "minmax(8rem, 2fr)", narrow: false, cell: (row) => html`<progress max=${Math.max(1, row.total)} value=${row.done} aria-label=${`Progress of ${shortId(row.id)}`} />` },
  { name: "done", title: "Lines", width: "7rem", numeric: true, cell: (row) => `${count(row.done)} of ${count(row.total)}` },
  { name: "failed", title: "Failed", width: "5rem", numeric: true, narrow: false, cell: (row) => count(row.failed) },
  { name: "dialect", title: "Endpoint", width: "11rem", narrow: false, cell: (row) => row.endpoint },
  { name: "created", title: "Submitted", width: "9rem", numeric: true, narrow: false, cell: (row) => clock(row.created) },
  { name: "cancel", title: "Action", width: "6.5rem", cell: (row) => OPEN.has(row.status) && html`<${ConfirmButton} label="Cancel" confirm="Cancel it" name=${`batch ${shortId(row.id)}`} action=${() => cancel(row)} />` },
];

function merged(openai, anthropic) {
  const rows = [...(openai?.data ?? []).map(ofOpenai), ...(anthropic?.data ?? []).map(ofAnthropic)];
  return rows.sort((one, other) => other.created - one.created);
}

function ofOpenai(batch) {
  const counts = batch.request_counts ?? { total: 0, completed: 0, failed: 0 };
  return {
    id: batch.id,
    path: `v1/batches/${encodeURIComponent(batch.id)}`,
    status: batch.status,
    endpoint: batch.endpoint,
    total: counts.total,
    done: counts.completed + counts.failed,
    failed: counts.failed,
    created: batch.created_at * 1000,
  };
}

function ofAnthropic(batch) {
  const { processing, succeeded, errored, canceled, expired } = batch.progress ?? batch.request_counts;
  const done = succeeded + errored + canceled + expired;
  return {
    id: batch.id,
    path: `v1/messages/batches/${encodeURIComponent(batch.id)}`,
    status: batch.processing_status,
    endpoint: "/v1/messages",
    total: done + processing,
    done,
    failed: errored + expired,
    created: new Date(batch.created_at).getTime(),
  };
}
