// The state of the service after an event, chosen with a slider.
import { clock, count, shortId } from "../core/format.js";
import { link, setQuery } from "../core/hash.js";
import { shortened, visible } from "../core/plain_text.js";
import { html, useEffect, useRef, useState } from "../core/preact.js";
import { useResource } from "../core/resource.js";
import { Empty, Failure } from "./notices.js";
import { Status } from "./status.js";

/** A moving slider asks once it rests this long. */
const REST_MS = 150;
const JOBS = 20;

/** Props: `at`, the position as the address has it; empty for the end of the log. */
export function PastState({ at }) {
  const state = useResource("v1/events/state", { at: /^\d{1,18}$/.test(at) ? at : "", limit: JOBS });
  const { data } = state;
  const head = data?.head.position ?? 0;
  const position = data?.position ?? 0;
  return html`<section class="panel past" aria-labelledby="past-title">
    <h2 id="past-title">State after an event</h2>
    <${Failure} error=${state.error} />
    <${Slider} position=${position} head=${head} />
    ${data && html`
      <p><b>Event ${count(position)}</b>${data.type && html` · ${data.type} · ${clock(data.recorded_at)}`}
        ${position < head && html` · <button type="button" class="small" onClick=${() => setQuery({ at: "" })}>Back to now</button>`}</p>
      <p class="muted">Admission ${data.admission} · ${data.models.length === 0 ? "no model loaded" : data.models.map((one) => visible(one.model)).join(", ")}
        ${data.agents.map((one) => html` · <a key=${one.agent_id} href=${link("agents", [one.agent_id])}>${shortened(one.agent_id, 40)}</a> ${count(one.context_tokens)} tokens saved`)}</p>
      <${Jobs} jobs=${data.jobs} hasMore=${data.has_more} />`}
  </section>`;
}

function Slider({ position, head }) {
  const [value, setValue] = useState(null);
  const timer = useRef(null);
  useEffect(() => setValue(null), [position]);
  useEffect(() => () => clearTimeout(timer.current), []);
  const move = (event) => {
    const to = event.target.value;
    setValue(to);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => setQuery({ at: to }), REST_MS);
  };
  return html`<div class="slider">
    <input type="range" min="0" max=${head} value=${value ?? position} onInput=${move} aria-label="Event number" />
    <input type="number" min="0" max=${head} value=${value ?? position} onInput=${move} aria-label="Event number, as digits" />
    <span class="muted">of ${count(head)}</span>
  </div>`;
}

function Jobs({ jobs, hasMore }) {
  if (jobs.length === 0) return html`<${Empty}>No job was accepted by then.<//>`;
  return html`<div class="scroll short" tabindex="0" role="region" aria-label="Jobs at that time"><table class="data-table">
    <thead><tr><th scope="col">Job</th><th scope="col">Status</th><th scope="col">Agent</th>
      <th scope="col" class="numeric">Attempt</th><th scope="col" class="numeric">Output</th></tr></thead>
    <tbody>${jobs.map((job) => html`<tr key=${job.id}>
      <td><a href=${link("jobs", [job.id])}>${shortId(job.id)}</a></td>
      <td><${Status} value=${job.status} /></td>
      <td>${shortened(job.agent_id ?? "", 60)}</td>
      <td class="numeric">${count(job.attempt)}</td>
      <td class="numeric">${count(job.usage.completion_tokens)}</td>
    </tr>`)}</tbody>
  </table>${hasMore && html`<p class="muted">Older jobs are left out.</p>`}</div>`;
}
