// Asks for an API key where the service refused the request without one.
import { html, useRef, useState } from "../core/preact.js";
import { enterKey, session } from "../core/session.js";
import { useStore } from "../core/store.js";

export function KeyEntry() {
  const { refusal } = useStore(session);
  const field = useRef(null);
  const [remember, setRemember] = useState(false);
  if (refusal === null) return null;
  const submit = (event) => {
    event.preventDefault();
    const key = field.current.value.trim();
    if (key) enterKey(key, { remember });
  };
  return html`
    <form class="key-entry panel" onSubmit=${submit} aria-labelledby="key-title">
      <h1 id="key-title">This service asks for a key</h1>
      <p role="alert">${refusal}</p>
      <label>API key <input ref=${field} type="password" autocomplete="off" spellcheck=${false} autofocus /></label>
      <label class="check"><input type="checkbox" checked=${remember} onChange=${(event) => setRemember(event.target.checked)} />
        Keep it in this browser</label>
      <button type="submit">Use the key</button>
    </form>`;
}
