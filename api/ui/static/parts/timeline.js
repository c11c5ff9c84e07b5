// The time of a job as bars, one lane for each attempt, over one axis.
import { duration, percent } from "../core/format.js";
import { visible } from "../core/plain_text.js";
import { html, useEffect, useState } from "../core/preact.js";
import { Failure } from "./notices.js";

const NAMES = { held: "held", queued: "queued", restore: "restored", prefill: "prompt read", decode: "answer written", run: "running", lost: "worker died" };
const MARKS = {
  lost: "✕",
  attempt_failed: "!",
  retried: "↻",
  cancel_requested: "■",
  failed: "✕",
  cancelled: "■",
  expired: "✕",
  attached: "+",
};
const TICKS = 5;
/** Ticks beyond this share of the axis have no room for their text. */
const LABELLED = 0.85;

/** The phase before the prompt is read has another name where the cache held none of it. */
const namesOf = (cached) => (cached > 0 ? NAMES : { ...NAMES, restore: "prepared" });

/** Props: `timeline` and `error` of its request, `cached` (tokens that the cache held). */
export function Timeline({ timeline, error, cached }) {
  const names = namesOf(cached);
  const elapsed = useElapsed(timeline);
  if (!timeline) return html`<${Failure} error=${error} />`;
  const total = Math.max(1, elapsed, ...timeline.steps.map((step) => step.after_ms));
  const bars = timeline.bars.map((bar) => ({ ...bar, to_ms: bar.to_ms ?? total, open: bar.to_ms === null }));
  const attempts = [...new Set(bars.map((bar) => bar.attempt))];
  return html`
    <section aria-label="Timeline" class="timeline">
      <h2>Where the time went <span class="muted">${duration(total)}${timeline.ended ? "" : " so far"}</span></h2>
      <div class="panel">
        <${Sums} bars=${bars} names=${names} />
        <div class="lanes" aria-hidden="true">
          ${attempts.map((attempt) => html`<${Lane} key=${attempt} names=${names} attempt=${attempt} total=${total} alone=${attempts.length === 1}
            bars=${bars.filter((bar) => bar.attempt === attempt)} marks=${marksOf(timeline, bars, attempt)} />`)}
          <${Axis} total=${total} />
        </div>
        <${Steps} steps=${timeline.steps} />
      </div>
    </section>`;
}

/** Milliseconds since the acceptance; it goes on while the job is open. */
function useElapsed(timeline) {
  const [now, setNow] = useState(0);
  const loaded = timeline ? new Date(timeline.at) - new Date(timeline.steps[0].at) : 0;
  useEffect(() => {
    if (!timeline || timeline.ended) return undefined;
    const began = performance.now();
    setNow(loaded);
    const timer = setInterval(() => document.hidden || setNow(loaded + performance.now() - began), 500);
    return () => clearInterval(timer);
  }, [timeline]);
  if (!timeline) return 0;
  return timeline.ended ? timeline.total_ms : Math.max(loaded, now);
}

/** Marks stand in the lane of their attempt; those before a first attempt in its lane too. */
function marksOf(timeline, bars, attempt) {
  const laneOf = (step) => {
    if (step.attempt) return step.attempt;
    const before = bars.filter((bar) => bar.from_ms <= step.after_ms);
    return before.at(-1)?.attempt ?? 1;
  };
  return timeline.steps.filter((step) => MARKS[step.what] && laneOf(step) === attempt);
}

function Lane({ names, attempt, bars, marks, total, alone }) {
  const at = (ms) => `${(100 * ms) / total}%`;
  return html`
    <div class="lane">
      ${!alone && html`<span class="lane-name muted">attempt ${attempt}</span>`}
      <div class="lane-bars">
        ${bars.map((bar) => html`<span key=${bar.from_ms} class=${bar.open ? "bar-part open" : "bar-part"} data-tone=${bar.kind}
          title=${`${names[bar.kind]}: ${duration(bar.to_ms - bar.from_ms)}`}
          style=${{ left: at(bar.from_ms), width: at(bar.to_ms - bar.from_ms) }}></span>`)}
        ${marks.map((step) => html`<span key=${`${step.what}${step.after_ms}`} class="bar-mark" data-what=${step.what} title=${visible(step.text)}
          style=${{ left: at(step.after_ms) }}>${MARKS[step.what]}</span>`)}
      </div>
    </div>`;
}

function Axis({ total }) {
  const step = niceStep(total / TICKS);
  const ticks = [];
  for (let ms = 0; ms <= total; ms += step) ticks.push(ms);
  return html`<div class="axis">${ticks.map((ms) => html`<span key=${ms} style=${{ left: `${(100 * ms) / total}%` }}>${ms === 0 ? "0" : ms < LABELLED * total ? duration(ms) : ""}</span>`)}</div>`;
}

function niceStep(rough) {
  const size = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((one) => one * size).find((one) => one >= rough);
}

/** How much of the time each kind took; the answer to "why was that slow?". */
function Sums({ bars, names }) {
  const sums = new Map();
  for (const bar of bars) sums.set(bar.kind, (sums.get(bar.kind) ?? 0) + bar.to_ms - bar.from_ms);
  const all = [...sums.values()].reduce((one, other) => one + other, 0);
  return html`<ul class="legend sums">
    ${[...sums].map(([kind, ms]) => html`<li key=${kind} data-tone=${kind}>${names[kind]} <b>${duration(ms)}</b> ${percent(all ? ms / all : null)}</li>`)}
  </ul>`;
}

function Steps({ steps }) {
  return html`<ol class="steps">
    ${steps.map((step, index) => html`<li key=${index} data-what=${step.what}><span class="steps-at">+${duration(step.after_ms)}</span> ${visible(step.text || step.what)}</li>`)}
  </ol>`;
}
