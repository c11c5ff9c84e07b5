// The state of the page is the hash of its address: `#/jobs/job-1?status=running`.
import { createStore, useStore } from "./store.js";

function read() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const parts = path.split("/").filter(Boolean).map(decode);
  return { name: parts[0] ?? "", parts: parts.slice(1), query: new URLSearchParams(query) };
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

const route = createStore(read());
addEventListener("hashchange", () => route.set(read()));

/** Return `{name, parts, query}` of the present address; renders again when it changes. */
export const useRoute = () => useStore(route);

/** Return the address of a view, with parts of its path and a query. */
export function link(name, parts = [], query = {}) {
  const path = [name, ...parts].filter(Boolean).map(encodeURIComponent).join("/");
  const kept = Object.entries(query).filter(([, value]) => value !== "" && value != null);
  const text = new URLSearchParams(kept).toString();
  return `#/${path}${text ? `?${text}` : ""}`;
}

/** Go to an address; with `replace`, the present one is not kept in the history. */
export function go(to, { replace = false } = {}) {
  if (replace) history.replaceState(null, "", to);
  else location.hash = to;
  route.set(read());
}

/** Change parameters of the present address without a new entry in the history. */
export function setQuery(changes) {
  const { name, parts, query } = route.get();
  go(link(name, parts, { ...Object.fromEntries(query), ...changes }), { replace: true });
}
