// A bar of several amounts of one whole, with marks and a legend.
import { html } from "../core/preact.js";

/**
 * Props: `label`, `whole`, `parts` (`{name, value, tone}`), `marks` (`{name, value}`), `format`,
 * `note` (text at the end of the title line).
 */
export function Meter({ label, whole, parts, marks = [], format, note }) {
  const size = Math.max(1, whole);
  const spoken = [...parts, ...marks].map((one) => `${one.name} ${format(one.value)}`).join(", ");
  return html`
    <div class="meter">
      <div class="meter-title"><span>${label}</span><span class="muted">${note}</span></div>
      <div class="meter-bar" role="img" aria-label=${`${label}: ${spoken}, of ${format(whole)}`}>
        ${parts.map((part) => html`<span key=${part.name} class="meter-part" data-tone=${part.tone} title=${`${part.name} ${format(part.value)}`}
          style=${{ width: `${(100 * part.value) / size}%` }}></span>`)}
        ${marks.map((mark) => html`<span key=${mark.name} class="meter-mark" title=${`${mark.name} ${format(mark.value)}`}
          style=${{ left: `${Math.min(100, (100 * mark.value) / size)}%` }}></span>`)}
      </div>
      <ul class="legend" aria-hidden="true">
        ${parts.map((part) => html`<li key=${part.name} data-tone=${part.tone}>${part.name} <b>${format(part.value)}</b></li>`)}
        ${marks.map((mark) => html`<li key=${mark.name} data-tone="mark">${mark.name} <b>${format(mark.value)}</b></li>`)}
      </ul>
    </div>`;
}

/** A thin bar of progress; `value` is a share of 0 to 1. */
export function Progress({ value, tone, label }) {
  const whole = Math.round(100 * Math.min(1, Math.max(0, value)));
  return html`<span class="progress" role="progressbar" aria-label=${label} aria-valuemin="0" aria-valuemax="100" aria-valuenow=${whole}>
    <span data-tone=${tone} style=${{ width: `${whole}%` }}></span>
  </span>`;
}
