// A conversation is an agent that was created over HTTP: its turns, and what changes them.
import { ROOT, post } from "./api.js";
import { session } from "./session.js";
import { shellWord } from "./plain_text.js";

const pathOf = (id) => `v1/agents/${encodeURIComponent(id)}`;

/** Return the turns of the messages of an agent: `{number, job, input, answer}`; an open one has no answer. */
export function turnsOf(messages) {
  const turns = [];
  for (const one of messages) {
    if (one.job === null) continue;
    let turn = turns.at(-1);
    if (turn?.job !== one.job) {
      turn = { number: turns.length + 1, job: one.job, input: [], answer: null };
      turns.push(turn);
    }
    if (turn.answer) turn.input.push(turn.answer);
    turn.answer = one.role === "assistant" ? one : null;
    if (!turn.answer) turn.input.push(one);
  }
  return turns;
}

/** Return the fields of a request for a turn with these messages. */
export function inputOf(messages) {
  if (messages.length === 1 && messages[0].role === "user" && typeof messages[0].content === "string") return { prompt: messages[0].content };
  return { messages: messages.map(({ job, ...message }) => message) };
}

/** Create an agent, return its id. */
export const createAgent = async (profile) => (await post("v1/agents", profile)).id;

/** Add a turn; it is refused where the agent has another number of turns than `expected`. */
export const addTurn = (id, messages, options = {}, expected = null) =>
  post(`${pathOf(id)}/generate`, { ...inputOf(messages), ...options, expected_turn: expected });

/** Create an agent that has the first turns of another one, return its id. */
export const forkAgent = async (id, turn) => (await post(`${pathOf(id)}/fork`, { from_turn: turn })).id;

/** Return a command that adds the turn again to its agent, and prints its items as they come. */
export function curlOf(id, turn) {
  const key = session.get().key ? ' -H "x-api-key: $SEMANTIC_API_KEY"' : "";
  const body = JSON.stringify({ ...inputOf(turn.input), stream: true });
  return `curl -N ${ROOT.href}${pathOf(id)}/generate${key} -d ${shellWord(ascii(body))}`;
}

/** Return the content of a message: its text, or parts where images stand before it. */
export function contentOf(text, images) {
  if (images.length === 0) return text;
  const parts = images.map((url) => ({ type: "image_url", image_url: { url } }));
  return text.trim() ? [...parts, { type: "text", text }] : parts;
}

/** Return JSON whose strings have escapes in place of characters that a terminal may change. */
const ascii = (json) => json.replace(/[^\x20-\x7e]/g, (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`);
