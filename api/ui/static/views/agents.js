import { html } from "../core/preact.js";

export default function View() {
  return html`<p class="empty">This view is not built yet.</p>`;
}
