// The answer of a job, live while it is written; only where the reader asks for texts.
import { html, useLayoutEffect, useRef } from "../core/preact.js";
import { showTexts, texts } from "../core/texts.js";
import { useStore } from "../core/store.js";
import { storedParts, useLiveAnswer } from "./answer.js";

export function JobText({ job, ended }) {
  const shown = useStore(texts);
  return html`
    <section aria-label="Text" class="job-text">
      <h2>Text <label class="check"><input type="checkbox" checked=${shown} onChange=${(event) => showTexts(event.target.checked)} />
        Show prompts and answers in this tab</label></h2>
      ${shown && (ended ? html`<${Parts} parts=${storedParts(job.output)} />` : html`<${Live} id=${job.id} />`)}
    </section>`;
}

const Live = ({ id }) => html`<${Parts} parts=${useLiveAnswer(id).parts} follow />`;

function Parts({ parts, follow = false }) {
  const box = useRef(null);
  useLayoutEffect(() => {
    if (follow && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [parts]);
  if (parts.length === 0) return html`<p class="empty">No text yet.</p>`;
  return html`<div class="panel texts" ref=${box} tabindex="0" role="region" aria-label="Answer">
    ${parts.map((part, index) => html`<pre key=${index} data-kind=${part.kind}>${part.name ? `${part.name} ` : ""}${part.text}</pre>`)}
  </div>`;
}
