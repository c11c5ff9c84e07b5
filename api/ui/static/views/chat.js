// Conversations: each is an agent, whose turns are jobs.
import { useDenial } from "../core/access.js";
import { announce } from "../core/announce.js";
import { cancelJob } from "../core/actions.js";
import { addTurn, createAgent, forkAgent, turnsOf } from "../core/conversation.js";
import { count } from "../core/format.js";
import { go, link } from "../core/hash.js";
import { shortened } from "../core/plain_text.js";
import { html, useMemo, useRef, useState } from "../core/preact.js";
import { useResource } from "../core/resource.js";
import { Composer } from "../parts/composer.js";
import { Failure } from "../parts/notices.js";
import { Turn } from "../parts/turn.js";

const AGENTS = 100;
/** Turns that are shown at first; each asks for its job. */
const TURNS = 20;

export default function Chat({ route }) {
  const [id] = route.parts;
  return html`<div class="view chat">
    <h1 class="visually-hidden">Chat</h1>
    <${Agents} id=${id} />
    ${id ? html`<${Conversation} key=${id} id=${id} />` : html`<${Beginning} />`}</div>`;
}

function Agents({ id }) {
  const agents = useResource("v1/agents", { limit: AGENTS });
  const names = (agents.data?.data ?? []).map((one) => one.id);
  const known = id && !names.includes(id) ? [id, ...names] : names;
  return html`<div class="filters">
    <label>Agent <select value=${id ?? ""} onChange=${(event) => go(link("chat", [event.target.value]))}>
      <option value="">new</option>
      ${known.map((one) => html`<option key=${one} value=${one}>${shortened(one, 40)}</option>`)}
    </select></label>
    ${id && html`<a class="button" href=${link("chat")}>New conversation</a><a class="button" href=${link("agents", [id])}>Its contexts</a>`}
  </div><${Failure} error=${agents.error} />`;
}

/** What begins a conversation: the first message creates the agent. */
function Beginning() {
  const denial = useDenial("change");
  const created = useRef(null);
  const [failure, setFailure] = useState(null);
  const [profile, setProfile] = useState({});
  const set = (name) => (event) => setProfile({ ...profile, [name]: event.target.value.trim() || undefined });
  const send = async (messages, options) => {
    try {
      created.current ??= await createAgent({ ...profile, ...options });
      await addTurn(created.current, messages, options, 0);
      go(link("chat", [created.current]));
      return true;
    } catch (error) {
      setFailure(error);
      return false;
    }
  };
  return html`<div class="beginning panel">
      <label>Name <input type="text" autocomplete="off" spellcheck=${false} placeholder="drawn if empty" onChange=${set("id")} /></label>
      <label>System prompt <textarea rows="2" onChange=${set("system")}></textarea></label>
    </div>
    <${Failure} error=${failure} />
    <${Composer} send=${send} denial=${denial} />`;
}

function Conversation({ id }) {
  const path = `v1/agents/${encodeURIComponent(id)}`;
  const agent = useResource(path);
  const messages = useResource(`${path}/messages`);
  const denial = useDenial("change");
  const [failure, setFailure] = useState(null);
  const [shown, setShown] = useState(TURNS);
  const turns = useMemo(() => turnsOf(messages.data?.data ?? []), [messages.data]);
  const reload = () => Promise.all([agent.reload(), messages.reload()]);
  const options = useRef({});

  /** Do what may be refused; return whether it was done. */
  const attempt = async (action) => {
    try {
      await action();
      setFailure(null);
      return true;
    } catch (error) {
      setFailure(error);
      return false;
    } finally {
      reload();
    }
  };
  const send = (input) => attempt(() => addTurn(id, input, options.current, agent.data.turns));
  const fork = (turn) => attempt(async () => {
    const child = await forkAgent(id, turn.number);
    announce("The fork is open.");
    go(link("chat", [child]));
  });
  const regenerate = (turn, status) => {
    const counts = status === "completed";
    if (!counts) return send(turn.input);
    return attempt(async () => {
      const child = await forkAgent(id, turn.number - 1);
      await addTurn(child, turn.input, options.current, turn.number - 1);
      announce("The other answer is a turn of a fork.");
      go(link("chat", [child]));
    });
  };
  const onEnd = () => {
    announce("The answer has ended.");
    reload();
  };
  const open = agent.data?.open_job;
  const system = messages.data?.data.find((one) => one.role === "system")?.content ?? agent.data?.system;
  const last = turns.at(-1);
  return html`
    <${Failure} error=${agent.error ?? messages.error} />
    ${agent.data?.forked_from && html`<p class="muted">Forked from <a href=${link("chat", [agent.data.forked_from.agent_id])}>
      ${shortened(agent.data.forked_from.agent_id, 40)}</a> after turn ${count(agent.data.forked_from.turn)}.</p>`}
    ${system && html`<details class="fold"><summary>System prompt</summary><pre tabindex="0">${system}</pre></details>`}
    ${turns.length > shown && html`<button type="button" class="small" onClick=${() => setShown(shown + TURNS)}>Show earlier turns (${count(turns.length - shown)})</button>`}
    <div class="turns">
      ${turns.slice(-shown).map((turn) => html`<${Turn} key=${turn.job} agent=${id} turn=${turn} isLast=${turn === last} isAwaited=${turn.job === open} denial=${open ? "An answer is being written." : denial}
        onEnd=${onEnd} onRegenerate=${regenerate} onFork=${fork} />`)}
    </div>
    <${Failure} error=${failure} />
    ${agent.data && html`<${Composer} agent=${agent.data} send=${send} calls=${open ? [] : last?.answer?.tool_calls ?? []} denial=${denial}
      onOptions=${(chosen) => (options.current = chosen)} stop=${open ? () => attempt(() => cancelJob(open)) : null} />`}`;
}
