// What the service does now: the model, its memory, its rates, and the jobs in their three states.
import { html } from "../core/preact.js";
import { useOverview } from "../core/overview.js";
import { connection } from "../core/connection.js";
import { useStore } from "../core/store.js";
import { Failure } from "../parts/notices.js";
import { Charts } from "../parts/rate_charts.js";
import { Finished, Running, Waiting } from "../parts/job_tables.js";
import { Top } from "../parts/service_state.js";

export default function Now({ route }) {
  const now = useOverview();
  const { state, error } = useStore(connection);
  if (!now) return state === "refused" ? html`<${Failure} error=${error} />` : html`<p class="empty" role="status">Waiting for the service …</p>`;
  const stale = state === "waiting" || state === "refused";
  return html`
    <h1 class="visually-hidden">What the service does now</h1>
    <div class=${stale ? "now stale" : "now"}>
      <${Top} now=${now} />
      <${Charts} rates=${now.rates} range=${route.query.get("range") ?? "5m"} />
      <${Running} rows=${now.running} total=${now.rates.running} />
      <div class="halves">
        <${Waiting} rows=${now.waiting} total=${now.rates.queue_depth} />
        <${Finished} rows=${now.finished} />
      </div>
    </div>`;
}
