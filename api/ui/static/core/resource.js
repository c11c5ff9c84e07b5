// Replies of the API that a view shows, with their loading and failure.
import { get } from "./api.js";
import { useCallback, useEffect, useRef, useState } from "./preact.js";
import { session } from "./session.js";
import { useStore } from "./store.js";

/**
 * Return `{data, error, loading, reload}` of a GET. It is repeated when the path, the query or the
 * key change and, with `everyMs`, in that rhythm while the page is visible; a refusal (401, 403) ends
 * the rhythm. `path` null asks nothing. Old data stay shown while new ones are loaded or fail to load.
 */
export function useResource(path, query = {}, { everyMs = 0 } = {}) {
  const [state, setState] = useState({ data: null, error: null, loading: path !== null });
  const text = JSON.stringify(query);
  const key = useStore(session, keyOf);
  const running = useRef(null);
  const denied = useRef(false);

  const load = useCallback(async () => {
    running.current?.abort();
    if (path === null) return;
    const mine = new AbortController();
    running.current = mine;
    try {
      const data = await get(path, JSON.parse(text), mine.signal);
      denied.current = false;
      if (running.current === mine) setState({ data, error: null, loading: false });
    } catch (error) {
      if (error.name === "AbortError" || running.current !== mine) return;
      denied.current = error.denied;
      setState((old) => ({ ...old, error, loading: false }));
    }
  }, [path, text, key]);

  useEffect(() => {
    load();
    if (!everyMs) return () => running.current?.abort();
    const again = () => document.hidden || denied.current || load();
    const timer = setInterval(again, everyMs);
    document.addEventListener("visibilitychange", again);
    return () => {
      clearInterval(timer);
      document.removeEventListener("visibilitychange", again);
      running.current?.abort();
    };
  }, [load, everyMs]);

  return { ...state, reload: load };
}

const keyOf = (one) => one.key;
