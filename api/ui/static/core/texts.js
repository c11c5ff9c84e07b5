// Whether prompts and answers are shown. Off until the reader of this tab turns it on.
import { createStore } from "./store.js";
import { readStored, writeStored } from "./storage.js";

const NAME = "semantic.texts";

export const texts = createStore(readStored("sessionStorage", NAME) === "on");

/** Show or hide texts in this tab. */
export function showTexts(on) {
  writeStored("sessionStorage", NAME, on ? "on" : null);
  texts.set(on);
}
