// Says whether what is shown is live.
import { connection } from "../core/connection.js";
import { html, useEffect, useState } from "../core/preact.js";
import { useStore } from "../core/store.js";

const TEXTS = {
  idle: ["", "off"],
  connecting: ["connecting", "wait"],
  live: ["live", "good"],
  paused: ["paused", "off"],
  refused: ["refused", "bad"],
  ended: ["", "off"],
};

export function Connection() {
  const { state, retryAt } = useStore(connection);
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    if (state !== "waiting") return undefined;
    setNow(Date.now());
    const timer = setInterval(() => setNow(Date.now()), 500);
    return () => clearInterval(timer);
  }, [state, retryAt]);
  const waitS = Math.max(0, Math.ceil((retryAt - now) / 1000));
  const [text, tone] = TEXTS[state] ?? ["no connection", "bad"];
  return html`<div class="connection" data-state=${state}>
    <span class="status" role="status" data-tone=${tone}>${text}</span>
    ${state === "waiting" && html`<span class="muted" aria-hidden="true">next try in ${waitS} s</span>`}
  </div>`;
}
