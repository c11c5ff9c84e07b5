// What a screen reader speaks after an action whose effect is elsewhere on the page.
import { createStore } from "./store.js";

export const announcement = createStore("");

/** Speak a text once. */
export function announce(text) {
  announcement.set("");
  setTimeout(() => announcement.set(text), 50);
}
