// Models: those that are registered, those that fit this machine, and a search of the hub. One can be downloaded and loaded.
import { useDenial } from "../core/access.js";
import { loadModel } from "../core/actions.js";
import { post } from "../core/api.js";
import { announce } from "../core/announce.js";
import { bytes, count, percent, share, short } from "../core/format.js";
import { shortened, visible } from "../core/plain_text.js";
import { html, useEffect, useState } from "../core/preact.js";
import { useResource } from "../core/resource.js";
import { ConfirmButton } from "../parts/confirm_button.js";
import { Failure } from "../parts/notices.js";
import { Status } from "../parts/status.js";
import { WindowedList } from "../parts/windowed_list.js";

const SLOW_MS = 15_000;
const FAST_MS = 1_000;
const TONES = { loaded: "good", available: "run", missing: "off", failed: "bad" };

export default function Models() {
  const [failure, setFailure] = useState(null);
  const denial = useDenial("operate");
  const downloads = useDownloads(denial === null);
  const models = useResource("admin/models", {}, { everyMs: SLOW_MS });
  const suggested = useResource("admin/suggestions");
  const known = new Map((models.data?.data ?? []).map((one) => [one.source, one]));
  useEffect(() => {
    models.reload();
    suggested.reload();
  }, [downloads.ended]);

  const act = async (action) => {
    try {
      await action();
      setFailure(null);
    } catch (error) {
      setFailure(error);
    }
    downloads.reload();
    models.reload();
  };
  const pull = (id) => act(async () => {
    await post(`admin/models/${encodeURIComponent(id)}/pull`);
    announce(`${id} is being downloaded.`);
  });
  const load = (name) => act(() => loadModel(name));
  const action = (id) => html`<${Action} id=${id} here=${known.get(id)} download=${downloads.of(id)} denial=${denial} pull=${pull} load=${load} />`;
  return html`<div class="view">
    <h1 class="visually-hidden">Models</h1>
    <${Failure} error=${failure ?? models.error} />
    <section aria-label="On this machine"><h2>On this machine</h2>
      <${WindowedList} label="Models on this machine" rows=${models.data?.data ?? []} columns=${here(load)} keyOf=${(row) => row.name} minWidth="40rem" /></section>
    <section aria-label="Fits this machine"><h2>What fits this machine <span class="muted">${suggested.data && `${bytes(suggested.data.usable_bytes)} of ${bytes(suggested.data.memory_bytes)} usable`}</span></h2>
      <${WindowedList} label="Suggested models" rows=${suggested.data?.data ?? []} columns=${suggestion(action)} keyOf=${(row) => row.id} minWidth="48rem" /></section>
    <${Search} action=${action} denial=${denial} />
  </div>`;
}

const name = (text) => html`<span title=${visible(text)}>${shortened(text, 60)}</span>`;

const here = (load) => [
  { name: "name", title: "Model", width: "minmax(12rem, 2fr)", narrow: "minmax(0, 2fr)", cell: (row) => name(row.name) },
  { name: "state", title: "State", width: "8rem", narrow: "6rem", cell: (row) => html`<${Status} value=${row.state} tone=${TONES[row.state]} />` },
  { name: "size", title: "Size", width: "6rem", numeric: true, narrow: false, cell: (row) => bytes(row.size_bytes) },
  { name: "context", title: "Context", width: "6rem", numeric: true, narrow: false, cell: (row) => short(row.context_length) },
  { name: "load", title: html`<span class="visually-hidden">Load</span>`, width: "6rem", cell: (row) => row.kind === "chat" && (row.state === "available" || row.state === "failed") && html`<${ConfirmButton}
    label="Load" confirm="Swap now?" name=${row.name} needs="operate" action=${() => load(row.name)} />` },
];

const suggestion = (action) => [
  { name: "model", title: "Model", width: "minmax(14rem, 2fr)", narrow: "minmax(0, 2fr)", cell: (row) => name(row.id) },
  { name: "for", title: "Good for", width: "minmax(10rem, 1fr)", narrow: false, cell: (row) => row.good_for },
  { name: "weights", title: "Weights", width: "6rem", numeric: true, narrow: false, cell: (row) => bytes(row.weights_bytes) },
  { name: "fits", title: "Contexts of 20k", width: "8rem", narrow: false, cell: (row) => (row.contexts ? `${row.contexts} of 5 in memory` : "does not fit") },
  { name: "action", title: html`<span class="visually-hidden">Download</span>`, width: "12rem", narrow: "7rem", cell: (row) => (row.contexts > 0 || row.is_here) && action(row.id) },
];

const found = (action) => [
  { name: "model", title: "Model", width: "minmax(14rem, 2fr)", narrow: "minmax(0, 2fr)", cell: (row) => name(row.id) },
  { name: "downloads", title: "Downloads", width: "7rem", numeric: true, narrow: false, cell: (row) => count(row.downloads) },
  { name: "action", title: html`<span class="visually-hidden">Download</span>`, width: "12rem", narrow: "7rem", cell: (row) => action(row.id) },
];

/** What can be done with a model of the hub: download it, watch that, or load it. */
function Action({ id, here: known, download, denial, pull, load }) {
  if (download?.state === "running") {
    const text = download.size_bytes === null ? "asks the hub …" : `${percent(share(download.done_bytes, download.size_bytes))} of ${bytes(download.size_bytes)}`;
    return html`<span><progress max=${download.size_bytes ?? 1} value=${download.size_bytes === null ? 0 : download.done_bytes} aria-label=${`Download of ${id}`} /> ${text}</span>`;
  }
  if (known?.state === "loaded") return html`<${Status} value="loaded" tone="good" />`;
  if (known && known.state !== "missing") return html`<${ConfirmButton} label="Load" confirm="Swap now?" name=${id} needs="operate" action=${() => load(known.name)} />`;
  return html`<span><button type="button" class="small" disabled=${denial !== null} title=${denial} aria-label=${`Download ${id}`} onClick=${() => pull(id)}>Download</button>
    ${download?.state === "failed" && html`<span class="muted" title=${visible(download.why)}>${shortened(download.why, 60)}</span>`}</span>`;
}

function Search({ action, denial }) {
  const [text, setText] = useState("");
  const [asked, setAsked] = useState("");
  const { data, error, loading } = useResource(asked ? "admin/hub" : null, { search: asked });
  const submit = (event) => {
    event.preventDefault();
    setAsked(text.trim());
  };
  return html`<section aria-label="Hub"><h2>Search the hub</h2>
    <form class="filters" role="search" aria-label="Hub" onSubmit=${submit}>
      <label>Name <input type="search" value=${text} maxlength="100" onInput=${(event) => setText(event.target.value)} /></label>
      <button type="submit" class="small" disabled=${denial !== null || !text.trim()} title=${denial}>Search</button>
    </form>
    <${Failure} error=${error} />
    ${data?.problem && html`<p class="note" role="status">${visible(data.problem)}. Models that are on this machine can be loaded without it.</p>`}
    ${data && !data.problem && html`<${WindowedList} label="Found models" rows=${data.data} columns=${found(action)} keyOf=${(row) => row.id} minWidth="36rem"
      empty=${loading ? "Asking the hub …" : `Nothing in the format of MLX has “${visible(asked)}” in its name.`} />`}
  </section>`;
}

/** Return `{of, ended, reload}` of the downloads; they are asked for often only while one runs. */
function useDownloads(isAllowed) {
  const [everyMs, setEvery] = useState(SLOW_MS);
  const { data, reload } = useResource(isAllowed ? "admin/downloads" : null, {}, { everyMs });
  const all = data?.data ?? [];
  const runs = all.some((one) => one.state === "running");
  useEffect(() => setEvery(runs ? FAST_MS : SLOW_MS), [runs]);
  const ended = all.filter((one) => one.state === "done").map((one) => one.model).join(" ");
  return { of: (id) => all.find((one) => one.model === id), ended, reload };
}
