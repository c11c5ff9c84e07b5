import { html } from "../core/preact.js";

export default function Now() {
  return html`<p class="empty">This view is not built yet.</p>`;
}
