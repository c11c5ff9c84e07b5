// Dark, light, or as the system says.
import { createStore } from "./store.js";
import { readStored, writeStored } from "./storage.js";

const NAME = "semantic.theme";
const ORDER = ["system", "dark", "light"];

export const theme = createStore(readStored("localStorage", NAME) ?? "system");

/** Switch to the next of system, dark and light. */
export function nextTheme() {
  const next = ORDER[(ORDER.indexOf(theme.get()) + 1) % ORDER.length];
  writeStored("localStorage", NAME, next === "system" ? null : next);
  if (next === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = next;
  theme.set(next);
}

/** Return the value of a CSS variable, for what is drawn on a canvas. */
export function cssColor(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** Call back when colours change, by the reader or by the system; returns the unsubscribe. */
export function onColors(notify) {
  const media = matchMedia("(prefers-color-scheme: light)");
  const unsubscribe = theme.subscribe(notify);
  media.addEventListener("change", notify);
  return () => {
    unsubscribe();
    media.removeEventListener("change", notify);
  };
}
