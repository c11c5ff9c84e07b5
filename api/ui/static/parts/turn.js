// One turn of a conversation: the question, the answer as it comes, and what the cache did for it.
import { reasonText } from "../core/causes.js";
import { curlOf } from "../core/conversation.js";
import { count, duration, rate } from "../core/format.js";
import { link } from "../core/hash.js";
import { html, useEffect, useLayoutEffect, useState } from "../core/preact.js";
import { useResource } from "../core/resource.js";
import { storedParts, useLiveAnswer } from "./answer.js";
import { CacheFacts, cacheLine } from "./cache_story.js";
import { CopyLine } from "./copy_line.js";
import { Failure } from "./notices.js";
import { Progress } from "./meter.js";
import { Picture } from "./picture.js";
import { Status } from "./status.js";

const OPEN = new Set(["held", "queued", "running"]);
/** A reader who is further above the end is left there while an answer grows. */
const NEAR_END_PX = 240;
const AGAIN_MS = 100;
/** Linux refuses an argument of 128 KiB. */
const COMMAND_CHARACTERS = 120_000;

/**
 * Props: `agent` (its id), `turn`, `isLast`, `isAwaited` (the agent has it as open), `denial`, `onEnd()` once its job has ended,
 * `onRegenerate(turn)`, `onFork(turn)`.
 */
export function Turn({ agent, turn, isLast, isAwaited, denial, onEnd, onRegenerate, onFork }) {
  const job = useResource(`v1/jobs/${encodeURIComponent(turn.job)}`);
  const status = job.data?.status;
  const isOpen = OPEN.has(status);
  const [isOver, setOver] = useState(false);
  const live = useLiveAnswer(isOpen ? turn.job : null, () => setOver(true));
  const parts = isOpen ? live.parts : partsOf(job.data, turn, live);
  useFollow(isLast, parts);
  useEffect(() => {
    if (isAwaited && status && !isOpen) onEnd();
  }, [isAwaited, status, isOpen]);
  useEffect(() => {
    if (!isOver || !isOpen) return undefined;
    // The end of the stream may come before the end of the job is recorded.
    const timer = setTimeout(job.reload, AGAIN_MS);
    return () => clearTimeout(timer);
  }, [isOver, isOpen, job.data]);
  return html`<article class="turn" aria-label=${`Turn ${turn.number}`}>
    ${turn.input.map((message, index) => html`<${Asked} key=${index} message=${message} />`)}
    <div class="answer" dir="auto">
      ${parts.map((part, index) => html`<${Part} key=${index} part=${part} isOpen=${isOpen && index === parts.length - 1} />`)}
      ${isOpen && html`<${Waiting} live=${live} />`}
    </div>
    <${Failure} error=${job.error} />
    ${status && status !== "completed" && !isOpen && html`<p class="muted"><${Status} value=${status} />${" "}
      ${job.data.error?.message ?? "This turn does not count: the next message takes its place."}</p>`}
    ${status && !isOpen && html`
      <${Facts} job=${job.data} />
      <div class="turn-actions">
        <button type="button" class="small" disabled=${denial !== null} title=${denial} aria-label=${`Regenerate turn ${turn.number}`}
          onClick=${() => onRegenerate(turn, status)}>Regenerate</button>
        ${status === "completed" && html`<button type="button" class="small" disabled=${denial !== null} title=${denial}
          aria-label=${`Fork from turn ${turn.number}`} onClick=${() => onFork(turn)}>Fork</button>`}
        <${Curl} command=${curlOf(agent, turn)} label=${`turn ${turn.number} as curl`} />
      </div>`}
  </article>`;
}

function Curl({ command, label }) {
  if (command.length > COMMAND_CHARACTERS) return html`<span class="muted">The images are too long for a command.</span>`;
  return html`<details class="curl"><summary>curl</summary><${CopyLine} text=${command} label=${label} /></details>`;
}

/** The parts of a turn that is not open, before and after its job is loaded. */
function partsOf(job, { answer }, live) {
  if (job?.output) return storedParts(job.output);
  if (!answer) return live.parts;
  const calls = (answer.tool_calls ?? []).map((call) => ({ name: call.function.name, arguments: call.function.arguments }));
  return storedParts({ text: answer.content, thinking: answer.reasoning_content, tool_calls: calls });
}

/** Keep the end of the page in sight while the last answer grows. */
function useFollow(isLast, parts) {
  useLayoutEffect(() => {
    const page = document.documentElement;
    const below = page.scrollHeight - innerHeight - scrollY;
    if (isLast && below < NEAR_END_PX) page.scrollTop = page.scrollHeight;
  }, [isLast, parts]);
}

function Asked({ message }) {
  const parts = typeof message.content === "string" ? [{ text: message.content }] : message.content;
  const shown = (Text) => parts.map((part, index) => (part.image_url
    ? html`<${Picture} key=${index} url=${part.image_url.url} label="Image of the message" />`
    : html`<${Text} key=${index} text=${part.text} />`));
  if (message.role === "user") return html`<div class="asked" dir="auto">${shown(Prose)}</div>`;
  return html`<details class="fold"><summary>${message.role === "tool" ? "Result of a tool" : `Message of ${message.role}`}</summary>
    ${shown(Plain)}</details>`;
}

function Part({ part, isOpen }) {
  if (part.kind === "text") return html`<${Prose} text=${part.text} />`;
  const title = part.kind === "tool" ? `Call of ${part.name}` : "Reasoning";
  return html`<details class="fold"><summary>${title}${isOpen ? " …" : ""}</summary>
    <pre tabindex="0">${part.kind === "tool" ? indented(part.text) : part.text}</pre></details>`;
}

const Plain = ({ text }) => html`<pre tabindex="0">${text}</pre>`;

/** A text as it is; what stands between lines of three backticks is code. */
function Prose({ text }) {
  return text.split(/^```[^\n]*\n?/m).map((piece, index) => {
    if (index % 2) return html`<pre key=${index} class="code" tabindex="0">${piece}</pre>`;
    return piece && html`<div key=${index} class="prose-text">${piece}</div>`;
  });
}

function indented(json) {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json;
  }
}

/** What a turn without a first token waits for. */
function Waiting({ live: { parts, started, progress } }) {
  if (parts.length > 0) return null;
  if (progress?.phase === "prefill") {
    return html`<div class="muted" role="status">reads ${count(progress.done)} of ${count(progress.total)} tokens
      <${Progress} value=${progress.total ? progress.done / progress.total : 0} tone="prefill" label="Share of the prompt" /></div>`;
  }
  const place = progress?.waiting_for ? `waits for ${reasonText(progress.waiting_for)}, ${count(progress.total)} before it` : "waits";
  return html`<p class="muted" role="status">${started ? `${count(started.cached_tokens)} of ${count(started.prompt_tokens)} tokens restored` : place} …</p>`;
}

/** What the cache did, in a line that unfolds. */
function Facts({ job: { id, cache, usage, timings, answered_by: model } }) {
  const spent = timings.decode_ms / 1000;
  const figures = [
    model,
    `first token ${duration(timings.first_token_ms || null)}`,
    `${count(usage.completion_tokens)} tokens`,
    spent > 0 && `${rate((usage.completion_tokens - 1) / spent)} tok/s`,
  ];
  return html`<details class="cache-line"><summary>${cache ? cacheLine(cache) : "not started"}</summary>
    ${cache && html`<${CacheFacts} cache=${cache} />`}
    <p class="muted">${figures.filter(Boolean).join(" · ")} · <a href=${link("jobs", [id])}>the job</a></p></details>`;
}
