// What the key of this reader may do. The service decides; the page disables what it would refuse.
import { get } from "./api.js";
import { session } from "./session.js";
import { createStore, useStore } from "./store.js";

const EVERYTHING = { name: null, scope: "admin", may: ["read", "change", "read_all", "operate"] };

/** The object of `/admin/key`, or `null` before the first reply for the present key. */
export const access = createStore(null);

/** A service that does not answer is asked again after this time. */
const AGAIN_MS = 5_000;

let asked;

/** Ask for the access of the present key; the views wait for the reply. */
export function loadAccess() {
  const { key, refusal } = session.get();
  if (refusal !== null || key === asked) return;
  asked = key;
  access.set(null);
  ask(key);
}

async function ask(key) {
  let found = EVERYTHING;
  try {
    found = await get("admin/key");
  } catch (error) {
    // Each view shows why it gets no reply.
    if (!error.denied) setTimeout(() => key === asked && ask(key), AGAIN_MS);
  }
  if (key === asked) access.set(found);
}

/**
 * Return why the key may not do what needs `right` (`change`, `read_all` or `operate`), or `null`.
 */
export function useDenial(right) {
  const found = useStore(access);
  if (!found || found.may.includes(right)) return null;
  return `The scope ${found.scope} of this key does not allow this.`;
}
