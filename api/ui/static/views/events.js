// The event log: its latest events as they come, the state of its chain, the state after any event.
import { html } from "../core/preact.js";
import { ChainStatus } from "../parts/chain_status.js";
import { EventTail } from "../parts/event_tail.js";
import { PastState } from "../parts/past_state.js";

export default function Events({ route }) {
  return html`<div class="view">
    <h1 class="visually-hidden">Events</h1>
    <div class="columns">
      <${ChainStatus} />
      <${PastState} at=${route.query.get("at") ?? ""} />
    </div>
    <${EventTail} query=${route.query} /></div>`;
}
