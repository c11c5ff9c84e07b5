// The API key of this reader. It is sent in a header, never in an address.
import { createStore } from "./store.js";
import { readStored, writeStored } from "./storage.js";

const NAME = "semantic.key";

/**
 * `key` is empty until the reader enters one; `refusal` is the text of the last refusal, or `null`
 * while requests are accepted.
 */
export const session = createStore({
  key: readStored("sessionStorage", NAME) ?? readStored("localStorage", NAME) ?? "",
  refusal: null,
});

/** Use a key from now on, in this tab, or in this browser where `remember` is true. */
export function enterKey(key, { remember = false } = {}) {
  writeStored("sessionStorage", NAME, key || null);
  writeStored("localStorage", NAME, remember && key ? key : null);
  session.set({ key, refusal: null });
}

/** Forget a key that the service refused, so that the shell asks for another. */
export function refuseKey(message) {
  writeStored("sessionStorage", NAME, null);
  writeStored("localStorage", NAME, null);
  session.set({ key: "", refusal: message });
}
