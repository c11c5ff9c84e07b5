// Short texts about a part of the page: a failure, or that there is nothing.
import { html } from "../core/preact.js";

/** The text of a failed request; renders nothing without one. */
export function Failure({ error }) {
  if (!error) return null;
  return html`<p class="failure" role="alert">${error.message}</p>`;
}

/** What a part shows while it has no rows. */
export function Empty({ children }) {
  return html`<p class="empty">${children}</p>`;
}
