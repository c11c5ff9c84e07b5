// Server-sent events over `fetch`, because an `EventSource` sends no key header.
import { ApiError, send } from "./api.js";
import { session } from "./session.js";

const WAIT_MIN_MS = 500;
const WAIT_MAX_MS = 15_000;
/** A tab that is left for a moment keeps its stream. */
const HIDDEN_MS = 3_000;

/**
 * Follow a stream until `close`; reconnect with growing waits and pause while the page is hidden.
 *
 * `onEvent` gets `{event, data, id}` with `data` parsed where it is JSON. `onState` gets
 * `{state, retryAt, error}`; states are `connecting`, `live`, `waiting`, `paused`, `refused` and
 * `ended`. With `resume`, a reconnect sends the last id as `Last-Event-ID`. With `once`, the end of
 * the stream by the service is final.
 */
export function openStream(path, options) {
  const { query, onEvent, onState = () => {}, resume = true, once = false, after = "" } = options;
  let lastId = after;
  let failures = 0;
  let closed = false;
  let current = null;
  let timer = null;
  let hideTimer = null;

  const report = (state, more = {}) => onState({ state, retryAt: null, error: null, ...more });

  async function connect() {
    clearTimeout(timer);
    const mine = new AbortController();
    current = mine;
    report("connecting");
    try {
      const headers = { accept: "text/event-stream" };
      if (resume && lastId) headers["last-event-id"] = lastId;
      const response = await send("GET", path, { query, headers, signal: mine.signal });
      report("live");
      if (response.status !== 204) await read(response, mine);
      if (once && current === mine) return finish();
      retry(mine, null);
    } catch (error) {
      if (error.name !== "AbortError") retry(mine, error);
    }
    return undefined;
  }

  async function read(response, mine) {
    const parser = createParser((event) => {
      if (current !== mine) return;
      failures = 0;
      if (event.id) lastId = event.id;
      onEvent(event);
    });
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    try {
      for (;;) {
        const { done, value } = await reader.read();
        if (done || current !== mine) return;
        parser(value);
      }
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ApiError(0, "unreachable", "The connection was lost.");
    }
  }

  function retry(mine, error) {
    if (closed || current !== mine) return;
    current = null;
    const lasting = error && error.status >= 400 && error.status < 500 && error.status !== 429;
    if (lasting) {
      report("refused", { error });
      return;
    }
    const wait = error?.retryAfterS
      ? error.retryAfterS * 1000
      : Math.min(WAIT_MAX_MS, WAIT_MIN_MS * 2 ** failures) * (0.75 + Math.random() / 2);
    failures += 1;
    report("waiting", { retryAt: Date.now() + wait, error });
    timer = setTimeout(connect, wait);
  }

  function stop() {
    clearTimeout(timer);
    clearTimeout(hideTimer);
    const mine = current;
    current = null;
    mine?.abort();
  }

  function finish() {
    close();
    report("ended");
  }

  function pause() {
    stop();
    report("paused");
  }

  function onVisibility() {
    clearTimeout(hideTimer);
    if (document.hidden) hideTimer = setTimeout(pause, HIDDEN_MS);
    else if (current === null) reconnect();
  }

  function reconnect() {
    if (closed) return;
    stop();
    failures = 0;
    connect();
  }

  let key = session.get().key;
  const unsubscribe = session.subscribe((now) => {
    if (now.key !== key) {
      key = now.key;
      reconnect();
    }
  });

  function close() {
    if (closed) return;
    closed = true;
    stop();
    unsubscribe();
    document.removeEventListener("visibilitychange", onVisibility);
    removeEventListener("online", reconnect);
  }

  document.addEventListener("visibilitychange", onVisibility);
  addEventListener("online", reconnect);
  if (document.hidden) report("paused");
  else connect();
  return { close, reconnect };
}

/** Return a function of text pieces that hands on whole events (WHATWG HTML, server-sent events). */
export function createParser(onEvent) {
  let rest = "";
  let data = [];
  let event = "";
  let id = "";

  function line(text) {
    if (text === "") {
      if (data.length > 0) onEvent({ event: event || "message", data: parsed(data), id });
      data = [];
      event = "";
      return;
    }
    const colon = text.indexOf(":");
    if (colon === 0) return;
    const field = colon < 0 ? text : text.slice(0, colon);
    const value = colon < 0 ? "" : text.slice(colon + 1).replace(/^ /, "");
    if (field === "data") data.push(value);
    else if (field === "event") event = value;
    else if (field === "id") id = value;
  }

  return (piece) => {
    const lines = (rest + piece).split(/\r\n|\n|\r/);
    rest = lines.pop();
    for (const text of lines) line(text);
  };
}

function parsed(lines) {
  const text = lines.join("\n");
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}
