// Deliveries of webhooks; each can be sent again.
import { useDenial } from "../core/access.js";
import { change } from "../core/api.js";
import { announce } from "../core/announce.js";
import { ago, clock, count, shortId } from "../core/format.js";
import { setQuery } from "../core/hash.js";
import { shortened } from "../core/plain_text.js";
import { html, useState } from "../core/preact.js";
import { useResource } from "../core/resource.js";
import { Failure } from "../parts/notices.js";
import { Status } from "../parts/status.js";
import { WindowedList } from "../parts/windowed_list.js";

const EVERY_MS = 3000;
const STATES = ["pending", "delivered", "failed"];
const TONES = { pending: "wait", delivered: "good", failed: "bad" };

export default function Webhooks({ route }) {
  const state = STATES.includes(route.query.get("state")) ? route.query.get("state") : "";
  const webhooks = useResource("v1/webhooks", { limit: 100, state }, { everyMs: EVERY_MS });
  const [failure, setFailure] = useState(null);
  const denial = useDenial("change");
  const retry = async (row) => {
    try {
      await change("POST", `v1/webhooks/${encodeURIComponent(row.id)}/retry`);
      setFailure(null);
      announce("The webhook is sent again.");
    } catch (error) {
      setFailure(error);
    }
    webhooks.reload();
  };
  return html`<div class="view">
    <h1 class="visually-hidden">Webhooks</h1>
    <div class="filters">
      <label>State <select value=${state} onChange=${(event) => setQuery({ state: event.target.value })}>
        <option value="">all</option>
        ${STATES.map((one) => html`<option key=${one} value=${one}>${one}</option>`)}
      </select></label>
    </div>
    <${Failure} error=${failure ?? webhooks.error} />
    <${WindowedList} label="Webhooks" rows=${webhooks.data?.data ?? []} columns=${columns(retry, denial)}
      keyOf=${(row) => row.id} minWidth="64rem" empty="No webhook is due: name a receiver in a request or in the settings." /></div>`;
}

const columns = (retry, denial) => [
  { name: "type", title: "Message", width: "8rem", cell: (row) => shortened(row.type, 60) },
  { name: "state", title: "State", width: "7rem", cell: (row) => html`<${Status} value=${row.state} tone=${TONES[row.state]} />` },
  { name: "subject", title: "About", width: "8rem", narrow: false, cell: (row) => html`<span title=${row.subject}>${shortId(row.subject)}</span>` },
  { name: "url", title: "Receiver", width: "minmax(10rem, 2fr)", narrow: false, cell: (row) => html`<span title=${shortened(row.url, 1000)}>${shortened(row.url)}</span>` },
  { name: "attempts", title: "Attempts", width: "5rem", numeric: true, narrow: false, cell: (row) => count(row.attempts) },
  { name: "error", title: "Last result", width: "minmax(8rem, 1fr)", narrow: false, cell: (row) => html`<span title=${shortened(row.error ?? "", 1000)}>${resultOf(row)}</span>` },
  { name: "next", title: "Next try", width: "8rem", numeric: true, narrow: false, cell: (row) => (row.next_attempt_at ? clock(row.next_attempt_at) : "") },
  { name: "created", title: "Due since", width: "8rem", numeric: true, narrow: false, cell: (row) => ago(row.created_at) },
  { name: "retry", title: "Action", width: "6.5rem", cell: (row) => row.state !== "pending" && html`<button type="button" class="small" disabled=${denial !== null} title=${denial} aria-label=${`Send again ${shortId(row.id)}`} onClick=${() => retry(row)}>Send again</button>` },
];

function resultOf(row) {
  if (row.error) return shortened(row.error, 80);
  return row.status === null ? "" : `status ${row.status}`;
}
