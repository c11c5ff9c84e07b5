// The latest events, newest first; new ones come by themselves, older ones while it is scrolled.
import { get } from "../core/api.js";
import { connection } from "../core/connection.js";
import { clock, count, shortId } from "../core/format.js";
import { link, setQuery } from "../core/hash.js";
import { jsonText, shortened } from "../core/plain_text.js";
import { html, useCallback, useEffect, useRef, useState } from "../core/preact.js";
import { session } from "../core/session.js";
import { useStore } from "../core/store.js";
import { openStream } from "../core/stream.js";
import { Failure } from "./notices.js";
import { WindowedList } from "./windowed_list.js";

const PAGE = 200;
/** Events that are kept while more and more come. */
const KEPT = 5000;
/** New events are drawn together this often, however fast they come. */
const DRAW_MS = 200;
const END = "9223372036854775807";
const FILTERS = ["type", "stream", "agent_id"];

const COLUMNS = [
  { name: "position", title: "Event", width: "5rem", numeric: true, cell: (event) => count(event.position) },
  { name: "time", title: "Time", width: "9rem", narrow: false, cell: (event) => clock(event.recorded_at) },
  { name: "type", title: "Type", width: "12rem", cell: (event) => event.type },
  { name: "stream", title: "Stream", width: "minmax(8rem, 1fr)", cell: (event) => html`<${Stream} name=${event.stream} />` },
  { name: "data", title: "Data", width: "minmax(10rem, 3fr)", narrow: false, cell: (event) => html`<code>${shortened(JSON.stringify(event.data), 160)}</code>` },
];

/** Props: `query`, the parameters of the address: `type`, `stream`, `agent_id` and `paused`. */
export function EventTail({ query }) {
  const filter = Object.fromEntries(FILTERS.map((name) => [name, query.get(name) ?? ""]));
  const isPaused = query.get("paused") === "1";
  const [events, error, more] = useTail(JSON.stringify(filter), isPaused);
  const [open, setOpen] = useState(null);
  return html`<section aria-labelledby="tail-title">
    <h2 id="tail-title">Events</h2>
    <form class="filters" onSubmit=${(event) => event.preventDefault()}>
      <${Field} name="type" label="Type" value=${filter.type} suggestions=${typesOf(events)} />
      <${Field} name="stream" label="Stream" value=${filter.stream} />
      <${Field} name="agent_id" label="Agent" value=${filter.agent_id} />
      <button type="button" aria-pressed=${isPaused} onClick=${() => setQuery({ paused: isPaused ? "" : "1" })}>Pause</button>
    </form>
    <${Failure} error=${error} />
    <${WindowedList} label="Events" rows=${events} columns=${COLUMNS} keyOf=${(event) => event.position}
      onOpen=${setOpen} onEnd=${more} minWidth="60rem" empty="No event fits." />
    ${open && html`<section class="panel raw" aria-labelledby="raw-title">
      <h3 id="raw-title">Event ${count(open.position)}</h3>
      <div class="actions">
        <button type="button" class="small" onClick=${() => setQuery({ at: open.position })}>Show the state after it</button>
        <button type="button" class="small" onClick=${() => setOpen(null)}>Close</button>
      </div>
      <pre tabindex="0" role="region" aria-labelledby="raw-title">${jsonText(open)}</pre>
    </section>`}
  </section>`;
}

function Field({ name, label, value, suggestions }) {
  const set = (event) => setQuery({ [name]: event.target.value.trim() });
  return html`<label>${label} <input type="search" value=${value} onChange=${set} spellcheck=${false}
    autocomplete="off" list=${suggestions ? `known-${name}` : undefined} />
    ${suggestions && html`<datalist id=${`known-${name}`}>${suggestions.map((one) => html`<option key=${one} value=${one} />`)}</datalist>`}
  </label>`;
}

function Stream({ name }) {
  if (name.startsWith("job-")) return html`<a href=${link("jobs", [name])}>${shortId(name)}</a>`;
  if (!name.startsWith("agent-")) return shortened(name, 80);
  return html`<a href=${link("agents", [name.slice("agent-".length)])}>${shortened(name, 80)}</a>`;
}

const typesOf = (events) => [...new Set(events.map((event) => event.type))].sort();
const keyOf = (one) => one.key;

/** Return the events so far, newest first, the last failure, and what fetches older ones. */
function useTail(text, isPaused) {
  const [events, setEvents] = useState([]);
  const [error, setError] = useState(null);
  const older = useRef({ before: null, busy: false });
  const key = useStore(session, keyOf);

  useEffect(() => {
    const filter = JSON.parse(text);
    const ended = new AbortController();
    let stream = null;
    let timer = null;
    let fresh = [];
    const draw = () => {
      timer = null;
      const added = fresh.reverse();
      fresh = [];
      setEvents((old) => [...added, ...old].slice(0, KEPT));
    };
    const begin = async () => {
      try {
        const page = await get("v1/events", { ...filter, before: END, limit: PAGE }, ended.signal);
        older.current = { before: page.next_before, busy: false };
        setEvents(page.data);
        setError(null);
        if (isPaused) return;
        stream = openStream("v1/events", {
          query: { ...filter, after: page.next_after },
          onEvent: ({ data }) => {
            if (typeof data !== "object" || data.position === undefined) return;
            fresh.push(data);
            timer ??= setTimeout(draw, DRAW_MS);
          },
          onState: (state) => connection.set(state),
        });
      } catch (failure) {
        if (failure.name !== "AbortError") setError(failure);
      }
    };
    setEvents([]);
    older.current = { before: null, busy: false };
    begin();
    return () => {
      ended.abort();
      stream?.close();
      clearTimeout(timer);
      connection.set({ state: "idle", retryAt: null, error: null });
    };
  }, [text, isPaused, key]);

  const more = useCallback(async () => {
    const page = older.current;
    if (page.busy || page.before === null) return;
    page.busy = true;
    try {
      const found = await get("v1/events", { ...JSON.parse(text), before: page.before, limit: PAGE });
      if (older.current !== page) return;
      page.before = found.next_before;
      setEvents((old) => (old.length + found.data.length > KEPT ? old : [...old, ...found.data]));
    } catch (failure) {
      setError(failure);
    } finally {
      page.busy = false;
    }
  }, [text]);
  return [events, error, more];
}
