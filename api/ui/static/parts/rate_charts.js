// Four rates as charts, over a range that the reader chooses.
import { duration, percent, rate, short } from "../core/format.js";
import { setQuery } from "../core/hash.js";
import { html, useMemo } from "../core/preact.js";
import { useResource } from "../core/resource.js";
import { Chart } from "./chart.js";

const RANGES = [
  { name: "5m", title: "5 min", words: "5 minutes", lengthS: 300, everyMs: 5_000 },
  { name: "1h", title: "1 h", words: "hour", lengthS: 3600, everyMs: 30_000 },
  { name: "24h", title: "24 h", words: "24 hours", lengthS: 86_400, everyMs: 120_000 },
];
const compactDuration = (ms) => (ms === 0 ? "0" : duration(ms));
const CHARTS = [
  { field: "tokens_per_s", label: "Tokens per second", format: rate, tone: "--decode" },
  { field: "queue_depth", label: "Waiting jobs", format: short, tone: "--queued" },
  { field: "first_token_ms", label: "Time to first token", format: compactDuration, tone: "--prefill" },
  { field: "cached_share", label: "Prompt from cache", format: percent, tone: "--restored", top: 1 },
];

export function Charts({ rates, range }) {
  const chosen = RANGES.find((one) => one.name === range) ?? RANGES[0];
  const { data } = useResource("admin/history", { range: chosen.name }, { everyMs: chosen.everyMs });
  const columns = useMemo(() => (data ? spread(data, chosen) : null), [data]);
  return html`
    <section aria-label="Rates" class="rates">
      <fieldset class="segmented">
        <legend class="visually-hidden">Range of the charts</legend>
        ${RANGES.map((one) => html`<label key=${one.name}>
          <input type="radio" name="range" value=${one.name} checked=${one === chosen} onChange=${() => setQuery({ range: one.name })} />
          <span>${one.title}</span></label>`)}
      </fieldset>
      <div class="charts">
        ${CHARTS.map((chart) => html`<${Chart} key=${chart.field} ...${chart} value=${rates[chart.field]} span=${chosen.words}
          times=${columns?.t ?? NONE} values=${columns?.[chart.field] ?? NONE} />`)}
      </div>
    </section>`;
}

const NONE = [];

/** Return columns over the whole range; a step without a point is a gap. */
function spread({ points, step_s: step }, { lengthS }) {
  const end = Math.max(Math.floor(Date.now() / 1000 / step) * step, points.at(-1)?.t ?? 0);
  const found = new Map(points.map((point) => [point.t, point]));
  const columns = { t: [] };
  for (const { field } of CHARTS) columns[field] = [];
  for (let t = end - lengthS + step; t <= end; t += step) {
    columns.t.push(t);
    for (const { field } of CHARTS) columns[field].push(found.get(t)?.[field] ?? null);
  }
  return columns;
}
