// One agent: what can be done with it, its contexts, its hits and misses.
import { useDenial } from "../core/access.js";
import { announce } from "../core/announce.js";
import { change, post } from "../core/api.js";
import { clock, count, shortId } from "../core/format.js";
import { go, link } from "../core/hash.js";
import { shellWord, shortened, visible } from "../core/plain_text.js";
import { html, useState } from "../core/preact.js";
import { useResource } from "../core/resource.js";
import { BlockLegend, BlockMap } from "./block_map.js";
import { ConfirmButton } from "./confirm_button.js";
import { CopyLine } from "./copy_line.js";
import { Empty, Failure } from "./notices.js";
import { Status } from "./status.js";

const EVERY_MS = 3000;
const END = "9223372036854775807";
const EVENTS = 50;
const REASONS = {
  diverged: "the prompt differs from the saved context",
  gone: "the blocks were deleted",
  model_changed: "another model answered",
};

export function AgentDetail({ id }) {
  const path = `v1/agents/${encodeURIComponent(id)}`;
  const blocks = useResource(`${path}/blocks`, {}, { everyMs: EVERY_MS });
  return html`
    <nav class="crumbs" aria-label="Path"><a href=${link("agents")}>Agents</a> / <span>${shortened(id, 60)}</span></nav>
    <h1 class="name">${shortened(id)}</h1>
    <${Failure} error=${blocks.error} />
    <${Actions} id=${id} path=${path} isRegistered=${blocks.data?.registered === true} reload=${blocks.reload} />
    <section aria-labelledby="contexts-title">
      <h2 id="contexts-title">Contexts</h2>
      ${blocks.data && blocks.data.contexts.length === 0 && html`<${Empty}>No context of this agent is saved.<//>`}
      ${blocks.data?.contexts.map((context) => html`<${Context} key=${context.job} context=${context} />`)}
    </section>
    <${Lookups} id=${id} />`;
}

function Actions({ id, path, isRegistered, reload }) {
  const [failure, setFailure] = useState(null);
  const denial = useDenial("change");
  const act = (action) => async () => {
    try {
      setFailure(null);
      await action();
    } catch (error) {
      setFailure(error);
    }
  };
  const fork = act(async () => {
    const child = await post(`${path}/fork`, {});
    announce(`The fork is ${child.id}.`);
    go(link("agents", [child.id]));
  });
  const forget = act(async () => {
    const done = await change("DELETE", `${path}/cache`);
    announce(`${done.blocks} blocks are deleted.`);
    reload();
  });
  const remove = act(async () => {
    await change("DELETE", path);
    announce("The agent is deleted.");
    go(link("agents"));
  });
  const name = shortened(id, 40);
  return html`<${Failure} error=${failure} />
    <div class="actions">
      ${isRegistered && html`<a class="button small" href=${link("chat", [id])}>Chat</a>
        <button type="button" class="small" disabled=${denial !== null} title=${denial} onClick=${fork} aria-label=${`Fork ${name}`}>Fork</button>`}
      <${ConfirmButton} label="Forget the cache" confirm="Delete its blocks" name=${`of ${name}`} action=${forget} />
      ${isRegistered && html`<${ConfirmButton} label="Delete" confirm="Delete the agent" name=${name} action=${remove} />`}
    </div>
    <details class="note">
      <summary>Erase its texts</summary>
      <p class="muted">This command erases the prompts and answers of all its jobs. The service may run:</p>
      <${CopyLine} text=${`semantic log erase --agent ${shellWord(id)}`} label="the command that erases its texts" />
    </details>`;
}

function Context({ context }) {
  const { blocks, tokens, job, at, shared_with: others } = context;
  return html`<article class="panel context">
    <h3><a href=${link("jobs", [job])}>${shortId(job)}</a> · ${count(tokens)} tokens in ${count(blocks.length)} ${blocks.length === 1 ? "block" : "blocks"}</h3>
    <p class="muted">saved ${clock(at)}${others.length > 0 && html` · shares blocks with
      ${others.map((other) => html` <a key=${other} href=${link("agents", [other])}>${shortened(other, 40)}</a>`)}`}</p>
    <${BlockMap} context=${context} />
    <${BlockLegend} blocks=${blocks} />
  </article>`;
}

/** The latest hits and misses of the cache. */
function Lookups({ id }) {
  const query = { agent_id: id, before: END, limit: EVENTS, type: ["AgentCacheRestored", "AgentCacheMissed"] };
  const events = useResource("v1/events", query, { everyMs: EVERY_MS });
  const rows = events.data?.data ?? [];
  return html`<section aria-labelledby="lookups-title">
    <h2 id="lookups-title">Hits and misses</h2>
    <${Failure} error=${events.error} />
    ${events.data && rows.length === 0 && html`<${Empty}>No job of this agent had a saved context to reuse.<//>`}
    ${rows.length > 0 && html`<div class="scroll" tabindex="0" role="region" aria-label="Table of hits and misses"><table class="data-table">
      <thead><tr><th scope="col">Time</th><th scope="col">Job</th><th scope="col">Result</th>
        <th scope="col" class="numeric">Tokens</th><th scope="col">Cause</th></tr></thead>
      <tbody>${rows.map((event) => html`<tr key=${event.position}>
        <td>${clock(event.recorded_at)}</td>
        <td><a href=${link("jobs", [event.data.job])}>${shortId(event.data.job)}</a></td>
        <td>${event.type === "AgentCacheRestored"
          ? html`<${Status} value="hit" tone="good" />`
          : html`<${Status} value="miss" tone="bad" />`}</td>
        <td class="numeric">${count(event.data.tokens ?? event.data.missed_tokens)}</td>
        <td>${causeOf(event)}</td>
      </tr>`)}</tbody>
    </table></div>`}
  </section>`;
}

function causeOf({ type, data }) {
  if (type === "AgentCacheRestored") {
    return `from ${data.source === "disk" ? "disk" : "memory"}, of ${count(data.prompt_tokens)}`;
  }
  return `${REASONS[data.reason] ?? visible(data.reason)}, from token ${count(data.at_token)} on`;
}
