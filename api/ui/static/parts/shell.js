// The frame of every view: title, navigation, state of the connection, theme.
import { access, loadAccess } from "../core/access.js";
import { announcement } from "../core/announce.js";
import { link, useRoute } from "../core/hash.js";
import { shortened } from "../core/plain_text.js";
import { html, useEffect, useErrorBoundary, useState } from "../core/preact.js";
import { session } from "../core/session.js";
import { useStore } from "../core/store.js";
import { nextTheme, theme } from "../core/theme.js";
import { VIEWS, viewOf } from "../views.js";
import { Connection } from "./connection.js";
import { KeyEntry } from "./key_entry.js";
import { Failure } from "./notices.js";

export function Shell() {
  const route = useRoute();
  const view = viewOf(route.name);
  const refused = useStore(session, isRefused);
  const key = useStore(session, keyOf);
  const known = useStore(access);
  useEffect(() => {
    loadAccess();
  }, [key]);
  useEffect(() => {
    document.title = view.name ? `${view.title} · semantic` : "semantic";
  }, [view]);
  useNumberKeys();
  return html`
    <a class="skip" href="#main" onClick=${focusMain}>Skip to the content</a>
    <header class="bar">
      <a class="brand" href=${link("")}>semantic</a>
      <nav aria-label="Views">
        ${VIEWS.map((one, index) => html`<a key=${one.name} href=${link(one.name)} title=${`${one.hint} (${(index + 1) % 10})`}
          aria-current=${one === view ? "page" : undefined}>${one.title}</a>`)}
      </nav>
      <${Connection} />
      <${ThemeButton} />
    </header>
    <main id="main" tabindex="-1">
      <${KeyEntry} />
      ${!refused && html`<${KeyNote} access=${known} />`}
      ${!refused && known && html`<${Loaded} key=${view.name} view=${view} route=${route} />`}
    </main>
    <div class="visually-hidden" role="status" aria-live="polite">${useStore(announcement)}</div>`;
}

const isRefused = (one) => one.refusal !== null;
const keyOf = (one) => one.key;

const SCOPES = {
  own: "you see and change what was made with it. The whole service is shown as sums.",
  read: "you see everything and change nothing.",
};

/** Shows why controls are disabled, for a key of limited scope. */
function KeyNote({ access: found }) {
  const effect = SCOPES[found?.scope];
  if (!effect) return null;
  return html`<p class="key-note muted">The key <b>${shortened(found.name ?? "", 40)}</b> has the scope <b>${found.scope}</b>: ${effect}</p>`;
}

/** A view whose module is loaded when it is first shown; its failure leaves the frame usable. */
function Loaded({ view, route }) {
  const [module, setModule] = useState(null);
  const [error, setError] = useState(null);
  const [crash] = useErrorBoundary();
  useEffect(() => {
    view.load().then(setModule, setError);
  }, [view]);
  if (crash || error) return html`<${Failure} error=${crash ?? error} />`;
  if (!module) return null;
  return html`<${module.default} route=${route} />`;
}

function ThemeButton() {
  const name = useStore(theme);
  return html`<button type="button" class="quiet" onClick=${nextTheme} aria-label=${`Theme: ${name}`} title=${`Theme: ${name}`}>
    ${{ system: "◐", dark: "●", light: "○" }[name] ?? "◐"}
  </button>`;
}

function focusMain(event) {
  event.preventDefault();
  document.getElementById("main").focus();
}

/** The number keys open the views. */
function useNumberKeys() {
  useEffect(() => {
    const onKey = (event) => {
      if (event.altKey || event.ctrlKey || event.metaKey || event.target.closest("input, textarea, select")) return;
      const view = /^[0-9]$/.test(event.key) && VIEWS[(Number(event.key) + 9) % 10];
      if (view) location.hash = link(view.name);
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, []);
}
