// A state as a coloured mark and its name; the name carries the meaning.
import { html } from "../core/preact.js";

const TONES = {
  held: "wait",
  queued: "wait",
  running: "run",
  completed: "good",
  failed: "bad",
  cancelled: "off",
  expired: "bad",
};

/** A state; `tone` overrides the colour of states that are not those of jobs. */
export function Status({ value, tone }) {
  return html`<span class="status" data-tone=${tone ?? TONES[value] ?? "off"}>${value}</span>`;
}
