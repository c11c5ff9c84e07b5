// The field for the next message, the model and the options of its turn.
import { announce } from "../core/announce.js";
import { contentOf } from "../core/conversation.js";
import { shortened } from "../core/plain_text.js";
import { html, useEffect, useRef, useState } from "../core/preact.js";
import { useResource } from "../core/resource.js";
import { Picture, urlOf } from "./picture.js";

const MODELS_MS = 15_000;

/**
 * Props: `send(messages, options)` (returns whether they were accepted), `stop` while an answer is
 * written, `agent` (an object of the API, if there is one yet), `calls` (tool calls of the last answer),
 * `onOptions(options)`, `denial`.
 */
export function Composer({ agent, send, stop = null, calls = [], denial, onOptions = () => {} }) {
  const field = useRef(null);
  const [results, setResults] = useState({});
  const [options, setOptions] = useState({});
  const [busy, setBusy] = useState(false);
  const [images, setImages] = useState([]);
  useEffect(() => onOptions(options), [options]);
  const set = (name, value) => setOptions({ ...options, [name]: value });

  const submit = async (event) => {
    event.preventDefault();
    const text = field.current.value;
    if (busy || stop || denial !== null || (!text.trim() && calls.length + images.length === 0)) return;
    const messages = calls.map((call) => ({ role: "tool", tool_call_id: call.id, content: results[call.id] ?? "" }));
    if (text.trim() || images.length) messages.push({ role: "user", content: contentOf(text, images) });
    setBusy(true);
    if (await send(messages, options)) {
      if (field.current) field.current.value = "";
      setResults({});
      setImages([]);
    }
    setBusy(false);
  };
  const onKey = (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) submit(event);
    else if (event.key === "Escape" && stop) halt();
  };
  const halt = () => {
    announce("The answer is being stopped.");
    stop();
  };
  return html`<form class="composer panel" aria-label="Next message" onSubmit=${submit}>
    ${calls.map((call) => html`<label key=${call.id} class="wide">Result of ${shortened(call.function.name, 60)}
      <textarea rows="2" value=${results[call.id] ?? ""} onInput=${(event) => setResults({ ...results, [call.id]: event.target.value })}></textarea></label>`)}
    <label class="wide"><span class="visually-hidden">Message</span>
      <textarea ref=${field} rows="3" disabled=${denial !== null} title=${denial} placeholder="Message; Enter sends, Shift and Enter begins a line" onKeyDown=${onKey}></textarea></label>
    ${images.map((url, index) => html`<button key=${url} type="button" class="small" aria-label=${`Remove image ${index + 1}`} title="Remove"
      onClick=${() => setImages(images.filter((one) => one !== url))}><${Picture} url=${url} label=${`Image ${index + 1}`} /></button>`)}
    <${Model} agent=${agent} value=${options.model ?? ""} onChange=${(name) => set("model", name || undefined)}
      onImages=${(urls) => setImages((before) => [...new Set([...before, ...urls])])} />
    <details class="options"><summary>Options</summary>
      <label>Temperature <input type="number" min="0" max="2" step="any" onChange=${(event) => set("temperature", numberOf(event))} /></label>
      <label>Tokens at most <input type="number" min="1" onChange=${(event) => set("max_tokens", numberOf(event))} /></label>
      <label class="check"><input type="checkbox" onChange=${(event) => set("thinking", event.target.checked || undefined)} /> Reasoning</label>
    </details>
    ${stop
      ? html`<button type="button" class="send" onClick=${halt} title="Escape">Stop</button>`
      : html`<button type="submit" class="send" disabled=${busy || denial !== null} title=${denial}>Send</button>`}
  </form>`;
}

const numberOf = (event) => (event.target.value === "" ? undefined : Number(event.target.value));

/** The menu of models, and the images for the chosen one where it reads them. */
function Model({ agent, value, onChange, onImages }) {
  const add = async ({ target }) => {
    onImages(await Promise.all([...target.files].map(urlOf)));
    target.value = "";
  };
  const { data } = useResource("v1/models", {}, { everyMs: MODELS_MS });
  const models = (data?.data ?? []).filter((one) => one.capabilities?.batch?.supported !== false);
  const loaded = models.find((one) => one.state === "loaded");
  const own = agent?.options?.model;
  const used = models.find((one) => one.id === (value || own)) ?? loaded;
  const usual = own ?? (loaded ? `${loaded.id}, loaded` : "the loaded one");
  return html`<label>Model <select value=${value} onChange=${(event) => onChange(event.target.value)}>
      <option value="">${shortened(usual, 40)}</option>
      ${models.map((one) => html`<option key=${one.id} value=${one.id}>${shortened(one.id, 40)}${one.state === "loaded" ? "" : ` (${one.state})`}</option>`)}
    </select></label>
    ${used && (used.capabilities?.image_input?.supported
      ? html`<label>Images <input type="file" multiple accept="image/png,image/jpeg,image/gif,image/webp" onChange=${add} /></label>`
      : html`<span class="muted images">No images: ${shortened(used.id, 40)} reads text only.</span>`)}`;
}
