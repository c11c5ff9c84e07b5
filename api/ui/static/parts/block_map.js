// A context as a map: one cell for each block, coloured by its place.
import { count } from "../core/format.js";
import { html } from "../core/preact.js";

const PLACES = [
  ["both", "in memory and on disk"],
  ["memory", "in memory"],
  ["disk", "on disk"],
  ["missing", "missing"],
  ["unknown", "unknown: no worker answers"],
];
const TEXTS = Object.fromEntries(PLACES);

/** Return the place of a block of the API. */
export function placeOf(block) {
  if (block.in_memory === null) return "unknown";
  if (block.in_memory) return block.on_disk ? "both" : "memory";
  return block.on_disk ? "disk" : "missing";
}

/** Props: `context`, an element of `contexts` of `/v1/agents/{id}/blocks`. */
export function BlockMap({ context }) {
  const { blocks } = context;
  return html`<div class="block-map" role="img" aria-label=${described(blocks)}>
    ${blocks.map((block) => html`<span key=${block.name} class="block" data-place=${placeOf(block)}
      data-shared=${block.shared_with > 0 ? "" : undefined} title=${titleOf(block)}></span>`)}
  </div>`;
}

/** The meaning of the colours, and how many blocks have each. */
export function BlockLegend({ blocks }) {
  const counts = countsOf(blocks);
  const shared = blocks.filter((block) => block.shared_with > 0).length;
  return html`<ul class="block-legend">
    ${PLACES.filter(([place]) => counts[place]).map(([place, text]) => html`<li key=${place}>
      <span class="block" data-place=${place} aria-hidden="true"></span> ${count(counts[place])} ${text}</li>`)}
    <li><span class="block" data-shared="" aria-hidden="true"></span> ${count(shared)} shared with other agents,
      ${" "}${count(blocks.length - shared)} its own</li>
  </ul>`;
}

function countsOf(blocks) {
  const counts = {};
  for (const block of blocks) counts[placeOf(block)] = (counts[placeOf(block)] ?? 0) + 1;
  return counts;
}

function described(blocks) {
  const counts = countsOf(blocks);
  const places = PLACES.filter(([place]) => counts[place]).map(([place, text]) => `${counts[place]} ${text}`);
  const shared = blocks.filter((block) => block.shared_with > 0).length;
  return `${blocks.length} blocks: ${places.join(", ")}; ${shared} shared`;
}

function titleOf(block) {
  const shared = block.shared_with ? `, shared with ${block.shared_with}` : "";
  return `${block.name.slice(0, 8)}: ${block.tokens} tokens, ${TEXTS[placeOf(block)]}${shared}`;
}
