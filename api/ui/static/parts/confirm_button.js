// A button whose action takes two presses, because it cannot be undone.
import { html, useEffect, useState } from "../core/preact.js";
import { useDenial } from "../core/access.js";
import { announce } from "../core/announce.js";

const ARMED_MS = 4000;

/** Props: `label`, `confirm` (text of the second press), `name` (what it acts on), `action`, and the right that it `needs`. */
export function ConfirmButton({ label, confirm, name, action, disabled = false, needs = "change" }) {
  const [armed, setArmed] = useState(false);
  const [busy, setBusy] = useState(false);
  const denial = useDenial(needs);
  useEffect(() => {
    if (!armed) return undefined;
    const timer = setTimeout(() => setArmed(false), ARMED_MS);
    return () => clearTimeout(timer);
  }, [armed]);
  const press = async (event) => {
    event.stopPropagation();
    if (!armed) {
      setArmed(true);
      announce(`Press again: ${confirm}`);
      return;
    }
    setArmed(false);
    setBusy(true);
    try {
      await action();
    } catch (error) {
      announce(error.message);
    } finally {
      setBusy(false);
    }
  };
  return html`<button type="button" class=${armed ? "small armed" : "small"} disabled=${disabled || busy || denial !== null} title=${denial}
    aria-label=${`${armed ? confirm : label} ${name}`} onClick=${press} onBlur=${() => setArmed(false)}>
    ${armed ? confirm : label}
  </button>`;
}
