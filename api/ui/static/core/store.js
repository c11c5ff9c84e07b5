// Values that several components read and that change over time.
import { useLayoutEffect, useState } from "./preact.js";

/**
 * Return a store: `get`, `set` (a value, or a function of the present one) and `subscribe`.
 * Setting the present value again notifies no subscriber.
 */
export function createStore(initial) {
  let value = initial;
  const subscribers = new Set();
  return {
    get: () => value,
    set(next) {
      const changed = typeof next === "function" ? next(value) : next;
      if (Object.is(changed, value)) return;
      value = changed;
      for (const notify of [...subscribers]) notify(value);
    },
    subscribe(notify) {
      subscribers.add(notify);
      return () => subscribers.delete(notify);
    },
  };
}

const same = (value) => value;

/** Return the selected part of a store; the component renders again when the part changes. */
export function useStore(store, select = same) {
  const [, setSeen] = useState(() => select(store.get()));
  const current = select(store.get());
  useLayoutEffect(() => {
    const notify = (value) => setSeen(() => select(value));
    notify(store.get());
    return store.subscribe(notify);
  }, [store, select]);
  return current;
}
