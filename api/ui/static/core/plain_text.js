// Texts of clients (names of agents and models, data of events) as they may be shown.

// Controls, marks that change the direction of text, and characters without width.
const HIDDEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202f\u2060-\u206f\ufeff\ufff9-\ufffb]|[\u{e0000}-\u{e0fff}]/gu;
const CHARS_MAX = 200;

/** Return a text in which hidden characters are visible: U+202E becomes `⟨202E⟩`. */
export const visible = (text) =>
  String(text).replace(HIDDEN, (char) => `⟨${char.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);

/** Return a visible text of at most 200 characters; the end of a longer one is an ellipsis. */
export function shortened(text, most = CHARS_MAX) {
  const chars = Array.from(String(text).slice(0, 4 * most + 4));
  return visible(chars.length > most ? `${chars.slice(0, most).join("")}…` : chars.join(""));
}

/** Return a value of the log as JSON lines, hidden characters visible, line breaks kept. */
export const jsonText = (value) => JSON.stringify(value, null, 2).split("\n").map(visible).join("\n");

/** Return a text as one word of a POSIX shell. */
export const shellWord = (text) => (/^[\w./:@-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);
