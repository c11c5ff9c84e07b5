// The answer of a job, live while it is written; only where the reader asks for texts.
import { html, useEffect, useLayoutEffect, useRef, useState } from "../core/preact.js";
import { openStream } from "../core/stream.js";
import { showTexts, texts } from "../core/texts.js";
import { useStore } from "../core/store.js";

const CHARS_MAX = 200_000;

export function JobText({ job, ended }) {
  const shown = useStore(texts);
  return html`
    <section aria-label="Text" class="job-text">
      <h2>Text <label class="check"><input type="checkbox" checked=${shown} onChange=${(event) => showTexts(event.target.checked)} />
        Show prompts and answers in this tab</label></h2>
      ${shown && (ended ? html`<${Parts} parts=${stored(job.output)} />` : html`<${Live} id=${job.id} />`)}
    </section>`;
}

function stored(output) {
  if (!output) return [];
  if (output.embeddings) return [{ kind: "text", text: vectorsText(output.embeddings) }];
  const calls = (output.tool_calls ?? []).map((call) => ({ kind: "tool", text: `${call.name} ${call.arguments}` }));
  return [{ kind: "thinking", text: output.thinking ?? "" }, { kind: "text", text: output.text ?? "" }, ...calls].filter((part) => part.text);
}

/** Counts of vectors in base64; an element has four bytes. */
function vectorsText(vectors) {
  const elements = Math.floor((vectors[0].replace(/=+$/, "").length * 3) / 16);
  return `${vectors.length} ${vectors.length === 1 ? "vector" : "vectors"} of ${elements} elements`;
}

function Live({ id }) {
  const [parts, setParts] = useState([]);
  useEffect(() => {
    setParts([]);
    let waiting = [];
    let frame = 0;
    const draw = () => {
      frame = 0;
      const news = waiting;
      waiting = [];
      setParts((old) => news.reduce(added, old));
    };
    const stream = openStream(`v1/jobs/${encodeURIComponent(id)}/stream`, {
      once: true,
      onEvent: ({ event, data }) => {
        const part = partOf(event, data);
        if (!part) return;
        waiting.push(part);
        frame ||= requestAnimationFrame(draw);
      },
    });
    return () => {
      cancelAnimationFrame(frame);
      stream.close();
    };
  }, [id]);
  return html`<${Parts} parts=${parts} follow />`;
}

function partOf(event, data) {
  if (event === "started") return { kind: "restart" };
  if (event === "thinking" || event === "text") return { kind: event, text: data.text };
  if (event === "tool_start") return { kind: "tool", text: `${data.name} ` };
  if (event === "tool_input") return { kind: "tool", text: data.fragment, goesOn: true };
  return null;
}

function added(parts, news) {
  if (news.kind === "restart") return [];
  const last = parts.at(-1);
  const joins = last && last.kind === news.kind && (news.kind !== "tool" || news.goesOn);
  if (!joins) return [...parts, { kind: news.kind, text: news.text }];
  return [...parts.slice(0, -1), { kind: last.kind, text: (last.text + news.text).slice(-CHARS_MAX) }];
}

function Parts({ parts, follow = false }) {
  const box = useRef(null);
  useLayoutEffect(() => {
    if (follow && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [parts]);
  if (parts.length === 0) return html`<p class="empty">No text yet.</p>`;
  return html`<div class="panel texts" ref=${box} tabindex="0" role="region" aria-label="Answer">
    ${parts.map((part, index) => html`<pre key=${index} data-kind=${part.kind}>${part.text}</pre>`)}
  </div>`;
}
