// Lines to paste that connect clients to this service, with the address of this page.
import { ROOT } from "../core/api.js";
import { count } from "../core/format.js";
import { visible } from "../core/plain_text.js";
import { html } from "../core/preact.js";
import { useResource } from "../core/resource.js";
import { CopyLine } from "../parts/copy_line.js";
import { Failure } from "../parts/notices.js";

const BASE = ROOT.href.replace(/\/$/, "");

export default function SetUp() {
  const clients = useResource("admin/clients", { base_url: BASE });
  const { data } = clients;
  return html`<div class="view">
    <h1 class="visually-hidden">Set up</h1>
    <${Failure} error=${clients.error} />
    ${data && html`<p class="note">The service answers at <code>${data.base_url}</code> as${" "}
      <code>${visible(data.model)}</code>${data.context_length !== null && html`, with ${count(data.context_length)} tokens of context`}.
      ${data.key_variable !== null && html` The lines read the key from the variable <code>${data.key_variable}</code>.`}</p>`}
    <div class="set-ups">
      ${data?.data.map((one) => html`<section key=${one.id} class="panel" aria-labelledby=${`set-up-${one.id}`}>
        <h2 id=${`set-up-${one.id}`}>${one.title}</h2>
        <p class="muted">${one.note}</p>
        <${CopyLine} text=${one.code} label=${`the lines for ${one.title}`} />
      </section>`)}
    </div></div>`;
}
