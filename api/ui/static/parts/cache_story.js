// Why the cache held no more of a prompt.
import { causeText } from "../core/causes.js";
import { count, percent, share, shortId } from "../core/format.js";
import { link } from "../core/hash.js";
import { visible } from "../core/plain_text.js";
import { texts } from "../core/texts.js";
import { html } from "../core/preact.js";
import { useStore } from "../core/store.js";

const SOURCES = { ram: "memory", disk: "the disk" };

/** Return what the cache did for a prompt, in a line: known and computed tokens, and why. */
export function cacheLine(cache) {
  const known = Math.max(cache.known_tokens, cache.cached_tokens);
  return [`${count(known)} of ${count(cache.prompt_tokens)} tokens known`,
    `${count(cache.prompt_tokens - cache.cached_tokens)} computed`, whyText(cache, known)].join(" · ");
}

function whyText({ cached_tokens: cached, divergence }, known) {
  if (divergence) return `${causeText(divergence.cause)} at ${visible(divergence.place) || "the start"}`;
  if (known > cached) return "the model goes on from a checkpoint only";
  return cached > 0 ? "the rest is new" : "no saved context begins like it";
}

/** Props: `cache`, of a job, or nothing. */
export function CacheStory({ cache }) {
  if (!cache) return null;
  return html`<section aria-label="Cache"><h2>Cache</h2><div class="panel prose"><${CacheFacts} cache=${cache} /></div></section>`;
}

/** The sentences of the story. */
export function CacheFacts({ cache }) {
  const shown = useStore(texts);
  const { divergence } = cache;
  const from = SOURCES[cache.source] ? ` from ${SOURCES[cache.source]}` : "";
  return html`
    <p>${count(cache.cached_tokens)} of ${count(cache.prompt_tokens)} tokens
      (${percent(share(cache.cached_tokens, cache.prompt_tokens))}) came${from || " from the cache"}.
      ${cache.known_tokens > cache.cached_tokens && ` The cache knew ${count(cache.known_tokens)}; the model goes on from a checkpoint only.`}</p>
    ${divergence && html`<p><b>${causeText(divergence.cause)}</b> at ${divergence.place || "the start"}, token ${count(divergence.at_token)}:${" "}
      ${count(cache.missed_tokens)} tokens were read again.
      ${cache.compared_with && html` Compared with <a class="id" href=${link("jobs", [cache.compared_with])}>${shortId(cache.compared_with)}</a>.`}</p>`}
    ${divergence && shown && (divergence.before || divergence.now) && html`
      <div class="diff"><pre data-side="before">${divergence.before}</pre><pre data-side="now">${divergence.now}</pre></div>`}`;
}
