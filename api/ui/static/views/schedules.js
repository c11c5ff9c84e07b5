// Schedules: jobs by cron expressions, with what they missed; each can be paused and removed.
import { useDenial } from "../core/access.js";
import { change } from "../core/api.js";
import { announce } from "../core/announce.js";
import { clock, count, shortId } from "../core/format.js";
import { link } from "../core/hash.js";
import { shortened } from "../core/plain_text.js";
import { html, useState } from "../core/preact.js";
import { useResource } from "../core/resource.js";
import { Failure } from "../parts/notices.js";
import { Status } from "../parts/status.js";
import { WindowedList } from "../parts/windowed_list.js";

const EVERY_MS = 3000;
const TONES = { active: "good", paused: "wait" };

export default function Schedules() {
  const schedules = useResource("v1/schedules", {}, { everyMs: EVERY_MS });
  const [failure, setFailure] = useState(null);
  const denial = useDenial("change");
  const act = async (row) => {
    const action = row.status === "paused" ? "resume" : "pause";
    try {
      await change("POST", `v1/schedules/${encodeURIComponent(row.id)}/${action}`);
      setFailure(null);
      announce(action === "pause" ? "The schedule is paused." : "The schedule goes on.");
    } catch (error) {
      setFailure(error);
    }
    schedules.reload();
  };
  return html`<div class="view">
    <h1 class="visually-hidden">Schedules</h1>
    <${Failure} error=${failure ?? schedules.error} />
    <${WindowedList} label="Schedules" rows=${schedules.data?.data ?? []} columns=${columns(act, denial)}
      keyOf=${(row) => row.id} minWidth="60rem" empty="There is no schedule: semantic schedules add NAME --cron … --prompt …" /></div>`;
}

const columns = (act, denial) => [
  { name: "name", title: "Name", width: "minmax(8rem, 1fr)", cell: (row) => shortened(row.name) },
  { name: "status", title: "State", width: "6rem", cell: (row) => html`<${Status} value=${row.status} tone=${TONES[row.status]} />` },
  { name: "cron", title: "Cron", width: "9rem", narrow: false, cell: (row) => html`<code>${shortened(row.cron)}</code>` },
  { name: "zone", title: "Time zone", width: "9rem", narrow: false, cell: (row) => shortened(row.timezone) },
  { name: "next", title: "Next", width: "10rem", numeric: true, cell: (row) => (row.next_at ? clock(row.next_at) : "–") },
  { name: "last", title: "Latest job", width: "6rem", narrow: false, cell: (row) => row.last && html`<a class="id" href=${link("jobs", [row.last.job])}>${shortId(row.last.job)}</a>` },
  { name: "fired", title: "Jobs", width: "5rem", numeric: true, narrow: false, cell: (row) => count(row.fired) },
  { name: "missed", title: "Missed", width: "6rem", numeric: true, narrow: false, cell: (row) => html`<span title=${missedOf(row)}>${count(row.missed_count)}</span>` },
  { name: "action", title: "Action", width: "6.5rem", cell: (row) => html`<button type="button" class="small" disabled=${denial !== null} title=${denial} aria-label=${`${verbOf(row)} ${shortened(row.name)}`} onClick=${() => act(row)}>${verbOf(row)}</button>` },
];

const verbOf = (row) => (row.status === "paused" ? "Resume" : "Pause");

function missedOf({ last_missed: missed }) {
  return missed ? `${missed.count} from ${clock(missed.first)} to ${clock(missed.last)}: ${shortened(missed.reason, 100)}` : "";
}
