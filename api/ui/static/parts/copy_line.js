// A command to copy.
import { announce } from "../core/announce.js";
import { html, useRef, useState } from "../core/preact.js";

const SHOWN_MS = 2000;

/** Props: `text`, `label` (what it is, for the button's name). */
export function CopyLine({ text, label = "the command" }) {
  const code = useRef(null);
  const [done, setDone] = useState(false);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      setDone(true);
      announce("Copied.");
      setTimeout(() => setDone(false), SHOWN_MS);
    } catch {
      // Without access to the clipboard, the text is selected for the reader's own shortcut.
      getSelection().selectAllChildren(code.current);
      announce("Selected; copy it with the keyboard.");
    }
  };
  return html`<div class="copy-line"><pre ref=${code} tabindex="0">${text}</pre>
    <button type="button" class="small" onClick=${copy} aria-label=${`Copy ${label}`}>${done ? "Copied" : "Copy"}</button></div>`;
}
