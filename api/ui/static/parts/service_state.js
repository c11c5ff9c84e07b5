// The head of the first view: model, state, swap menu, memory and disk.
import { useDenial } from "../core/access.js";
import { loadModel } from "../core/actions.js";
import { bytes, duration } from "../core/format.js";
import { html, useState } from "../core/preact.js";
import { useResource } from "../core/resource.js";
import { ConfirmButton } from "./confirm_button.js";
import { Meter } from "./meter.js";
import { Failure } from "./notices.js";
import { Status } from "./status.js";

const TONES = { ready: "good", loading: "wait", swapping: "wait", draining: "wait", paused: "wait", unloaded: "off", stuck: "bad", down: "bad" };
const MODELS_MS = 15_000;

export function Top({ now }) {
  const { data, reload } = useResource("admin/models", {}, { everyMs: MODELS_MS });
  const models = data?.data ?? [];
  return html`
    <section class="top panel" aria-label="Service">
      <div class="top-model">
        <div class="top-name">${now.model ?? "no model"}</div>
        <div><${Status} value=${now.state} tone=${TONES[now.state]} />
          ${now.workers.length > 1 && html`<span class="muted"> · ${now.workers.length} workers</span>`}</div>
        ${now.problem && html`<p class="muted">${now.problem}</p>`}
        <${Limits} abilities=${models.find((one) => one.name === now.model)?.abilities} />
        <${SwapMenu} model=${now.model} swap=${now.swap} models=${models} reload=${reload} />
      </div>
      <div class="top-meters">
        <${Memory} memory=${now.memory} />
        <${Disk} disk=${now.disk} free=${now.disk_free} />
      </div>
    </section>`;
}

function Memory({ memory }) {
  if (!memory) return html`<p class="muted">Memory: no worker reports it yet.</p>`;
  const { weights, live, kept, soft, hard, ceiling } = memory;
  return html`<${Meter}
    label="Memory"
    whole=${ceiling}
    format=${bytes}
    note=${`${bytes(weights + live + kept)} of ${bytes(ceiling)}`}
    parts=${[
      { name: "weights", value: weights, tone: "weights" },
      { name: "live contexts", value: live, tone: "decode" },
      { name: "kept blocks", value: kept, tone: "kept" },
    ]}
    marks=${[{ name: "soft mark", value: soft }, { name: "hard mark", value: hard }]}
  />`;
}

function Disk({ disk, free }) {
  if (!disk) return null;
  const states = { off: "off", paused: "paused", scanning: "scanning" };
  const note = states[disk.state] ?? `${bytes(disk.used)} of ${bytes(disk.budget)}`;
  return html`<${Meter}
    label="Disk"
    whole=${disk.budget}
    format=${bytes}
    note=${`${note} · ${bytes(free)} free`}
    parts=${[{ name: "saved blocks", value: disk.used, tone: "kept" }]}
  />`;
}

/** What the engine cannot do with the model, and why. */
function Limits({ abilities }) {
  const limits = Object.entries(abilities ?? {}).filter(([, one]) => one.degree !== "yes");
  if (limits.length === 0) return null;
  return html`
    <details class="muted">
      <summary>${limits.length === 1 ? "1 limit" : `${limits.length} limits`} of this model</summary>
      <ul>${limits.map(([name, one]) => html`<li key=${name}>${name.replaceAll("_", " ")}: ${one.degree}, ${one.why}</li>`)}</ul>
    </details>`;
}

function SwapMenu({ model, swap, models, reload }) {
  const [chosen, setChosen] = useState("");
  const [error, setError] = useState(null);
  const denial = useDenial("operate");
  const open = swap && swap.ended_at === null;
  if (open) {
    const since = duration(Date.now() - new Date(swap.created_at).getTime());
    return html`<p role="status">Changing to <b>${swap.model}</b>: ${swap.state} <span class="muted">since ${since}</span></p>`;
  }
  const others = models.filter((one) => one.name !== model && one.state !== "missing");
  const failed = swap?.state === "rolled_back" && html`<p class="muted">${swap.model} could not be loaded: ${swap.why}</p>`;
  if (others.length === 0) return failed;
  const name = others.some((one) => one.name === chosen) ? chosen : others[0].name;
  const swapTo = async () => {
    setError(null);
    try {
      await loadModel(name);
    } catch (failure) {
      setError(failure);
    }
    reload();
  };
  return html`
    <div class="swap">
      <select aria-label="Model to load" value=${name} disabled=${denial !== null} title=${denial} onChange=${(event) => setChosen(event.target.value)}>
        ${others.map((one) => html`<option key=${one.name} value=${one.name}>${one.name}${one.state === "failed" ? " (failed before)" : ""}</option>`)}
      </select>
      <${ConfirmButton} label="Load" confirm="Swap now?" name=${name} action=${swapTo} needs="operate" />
    </div>
    <${Failure} error=${error} />
    ${failed}`;
}
