// Whether the hash chain of the log is whole: the latest stretch at once, all of it on request.
import { get } from "../core/api.js";
import { count } from "../core/format.js";
import { visible } from "../core/plain_text.js";
import { html, useCallback, useEffect, useRef, useState } from "../core/preact.js";
import { Failure } from "./notices.js";
import { Status } from "./status.js";

/** Events that are checked when the view opens. */
const LATEST = 1000;

export function ChainStatus() {
  const [state, check, stop] = useChain();
  const { first, through, head, fault, error, isRunning, archived } = state;
  const end = head?.position ?? 0;
  return html`<section class="panel" aria-labelledby="chain-title">
    <h2 id="chain-title">Chain</h2>
    <${Failure} error=${error} />
    ${fault
      ? html`<p role="alert"><${Status} value="broken" tone="bad" /> at event ${count(fault.position)}: ${visible(fault.message)}</p>`
      : through && html`<p><${Status} value=${isRunning ? "checking" : "whole"} tone=${isRunning ? "run" : "good"} />:
          events ${count(Math.min(first + 1, through.position))} to ${count(through.position)} of ${count(end)} fit${archived > 0 && `; those up to ${count(archived)} are archived`}.</p>`}
    ${head && html`<p class="muted hash" title=${head.hash}>head ${head.hash.slice(0, 16)}…</p>`}
    ${isRunning && html`<progress max=${Math.max(1, end)} value=${through?.position ?? 0} aria-label="Checked events" />`}
    <div class="actions">
      ${isRunning
        ? html`<button type="button" class="small" onClick=${stop}>Stop</button>`
        : html`<button type="button" class="small" onClick=${() => check(0)}>Check all events</button>`}
    </div>
  </section>`;
}

const NOTHING = { first: 0, through: null, head: null, fault: null, error: null, isRunning: false, archived: 0 };

/** Return the state of the check, a function that checks from a position on, and one that stops. */
function useChain() {
  const [state, setState] = useState(NOTHING);
  const running = useRef(null);
  const stop = useCallback(() => {
    running.current?.abort();
    running.current = null;
    setState((old) => ({ ...old, isRunning: false }));
  }, []);

  const check = useCallback(async (from) => {
    running.current?.abort();
    const mine = new AbortController();
    running.current = mine;
    let after = from;
    let before = null;
    setState((old) => ({ ...old, fault: null, error: null, isRunning: true }));
    try {
      for (;;) {
        const found = await get("v1/events/check", { after }, mine.signal);
        if (running.current !== mine) return;
        const isCut = before !== null && before !== found.before.hash;
        const fault = isCut ? { position: found.before.position, message: "it changed during the check" } : found.fault;
        setState((old) => ({ ...old, first: before === null ? found.before.position : old.first,
          through: found.through, head: found.head, archived: found.archived_through, fault, isRunning: found.has_more && !fault }));
        if (fault || !found.has_more) break;
        after = found.next_after;
        before = found.through.hash;
      }
      running.current = null;
    } catch (error) {
      if (error.name !== "AbortError") setState((old) => ({ ...old, error, isRunning: false }));
    }
  }, []);

  useEffect(() => {
    const open = async () => {
      try {
        const { head } = await get("v1/events/check", { after: Number.MAX_SAFE_INTEGER, limit: 1 });
        await check(Math.max(0, head.position - LATEST));
      } catch (error) {
        setState((old) => ({ ...old, error }));
      }
    };
    open();
    return () => running.current?.abort();
  }, [check]);
  return [state, check, stop];
}
