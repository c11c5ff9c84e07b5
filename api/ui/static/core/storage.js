// Browser storage that may be refused or full; the page works without it.

/** Return a stored text, or `null`. */
export function readStored(storage, name) {
  try {
    return globalThis[storage].getItem(name);
  } catch {
    return null;
  }
}

/** Store a text; `null` removes it. */
export function writeStored(storage, name, text) {
  try {
    if (text === null) globalThis[storage].removeItem(name);
    else globalThis[storage].setItem(name, text);
  } catch {
    // The value is lost with the page.
  }
}
