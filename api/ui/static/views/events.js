// The event log: its latest events as they come, the state of its chain, the state after any event.
import { useDenial } from "../core/access.js";
import { html } from "../core/preact.js";
import { ChainStatus } from "../parts/chain_status.js";
import { EventTail } from "../parts/event_tail.js";
import { Empty } from "../parts/notices.js";
import { PastState } from "../parts/past_state.js";

export default function Events({ route }) {
  const denial = useDenial("read_all");
  return html`<div class="view">
    <h1 class="visually-hidden">Events</h1>
    ${denial
      ? html`<${Empty}>Checks and earlier states of the whole log are not shown. ${denial}<//>`
      : html`<div class="columns">
          <${ChainStatus} />
          <${PastState} at=${route.query.get("at") ?? ""} />
        </div>`}
    <${EventTail} query=${route.query} /></div>`;
}
