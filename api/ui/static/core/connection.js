// The state of the page's main stream, shown in its frame.
import { createStore } from "./store.js";

/** `{state, retryAt, error}` as `openStream` reports it; `idle` while no view follows a stream. */
export const connection = createStore({ state: "idle", retryAt: null, error: null });
