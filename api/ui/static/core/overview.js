// The live overview: one stream for all components that show a part of it.
import { connection } from "./connection.js";
import { useEffect } from "./preact.js";
import { createStore, useStore } from "./store.js";
import { openStream } from "./stream.js";

/** The latest object of `/admin/overview/stream`, or `null` before the first. */
export const overview = createStore(null);

let readers = 0;
let stream = null;

/** Return a selected part of the overview and follow it while the component is shown. */
export function useOverview(select) {
  useEffect(() => {
    readers += 1;
    if (readers === 1) {
      stream = openStream("admin/overview/stream", {
        resume: false,
        onEvent: ({ event, data }) => event === "overview" && overview.set(data),
        onState: connection.set,
      });
    }
    return () => {
      readers -= 1;
      if (readers > 0) return;
      stream.close();
      stream = null;
      connection.set({ state: "idle", retryAt: null, error: null });
    };
  }, []);
  return useStore(overview, select);
}
