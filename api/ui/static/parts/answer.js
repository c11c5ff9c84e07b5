// The parts of an answer, `{kind, text}`: as they are stored, and live while they are written.
import { useEffect, useRef, useState } from "../core/preact.js";
import { openStream } from "../core/stream.js";

const CHARS_MAX = 200_000;
const NOTHING = { parts: [], started: null, progress: null };

/** Return the parts of the `output` of a job; `name` is that of a called tool. */
export function storedParts(output) {
  if (!output) return [];
  if (output.embeddings) return [{ kind: "text", text: vectorsText(output.embeddings) }];
  const calls = (output.tool_calls ?? []).map((call) => ({ kind: "tool", name: call.name, text: call.arguments }));
  return [{ kind: "thinking", text: output.thinking ?? "" }, { kind: "text", text: output.text ?? "" }, ...calls].filter((part) => part.text || part.name);
}

/** Counts of vectors in base64; an element has four bytes. */
function vectorsText(vectors) {
  const elements = Math.floor((vectors[0].replace(/=+$/, "").length * 3) / 16);
  return `${vectors.length} ${vectors.length === 1 ? "vector" : "vectors"} of ${elements} elements`;
}

/**
 * Return `{parts, started, progress}` of a job that runs: its parts so far, and the latest `started`
 * and `progress` items. `onEnd` is called when nothing more comes. Without an id the last answer stays.
 */
export function useLiveAnswer(id, onEnd = () => {}) {
  const [answer, setAnswer] = useState(NOTHING);
  const notify = useRef(onEnd);
  notify.current = onEnd;
  useEffect(() => {
    if (!id) return undefined;
    setAnswer(NOTHING);
    let waiting = [];
    let frame = 0;
    const draw = () => {
      frame = 0;
      const news = waiting;
      waiting = [];
      setAnswer((old) => news.reduce(added, old));
    };
    const stream = openStream(`v1/jobs/${encodeURIComponent(id)}/stream`, {
      once: true,
      onEvent: (item) => {
        waiting.push(item);
        frame ||= requestAnimationFrame(draw);
      },
      onState: ({ state }) => {
        if (state === "ended" || state === "refused") notify.current();
      },
    });
    return () => {
      cancelAnimationFrame(frame);
      stream.close();
    };
  }, [id]);
  return answer;
}

function added(answer, { event, data }) {
  if (event === "started") return { ...NOTHING, started: data };
  if (event === "progress") return { ...answer, progress: data };
  const parts = joined(answer.parts, event, data);
  return parts === answer.parts ? answer : { ...answer, parts, progress: null };
}

function joined(parts, event, data) {
  const last = parts.at(-1);
  if (event === "tool_start") return [...parts, { kind: "tool", name: data.name, text: "" }];
  const kind = event === "tool_input" ? "tool" : event;
  if (kind !== "tool" && kind !== "text" && kind !== "thinking") return parts;
  const text = data.text ?? data.fragment;
  if (last?.kind !== kind) return [...parts, { kind, text }];
  return [...parts.slice(0, -1), { ...last, text: (last.text + text).slice(-CHARS_MAX) }];
}
