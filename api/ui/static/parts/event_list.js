// Raw events of the log, each with its data on request.
import { clock } from "../core/format.js";
import { jsonText } from "../core/plain_text.js";
import { html } from "../core/preact.js";

export function EventList({ events }) {
  return html`
    <section aria-label="Events">
      <h2>Events <span class="muted">${events.length}</span></h2>
      <div class="panel events">
        ${events.map((event) => html`<details key=${event.position}>
          <summary><span class="muted">${event.position}</span> <b>${event.type}</b> <span class="muted">${clock(event.recorded_at)}</span></summary>
          <pre tabindex="0">${jsonText(event.data)}</pre>
        </details>`)}
      </div>
    </section>`;
}
