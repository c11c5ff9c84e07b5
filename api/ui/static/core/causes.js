// Words for the causes and reasons that the API names.

const CAUSES = {
  model_changed: "another model",
  thinking_toggled: "thinking switched",
  effort_changed: "effort changed",
  tool_added: "a tool was added",
  tool_removed: "a tool was removed",
  tool_edited: "a tool was edited",
  tools_reordered: "tools were reordered",
  system_changed: "the system prompt changed",
  other_conversation: "another conversation",
  history_edited: "the history was edited",
  history_cut: "the history was cut",
  answer_rewritten: "an answer was rewritten",
  other_text: "the text differs",
  blocks_gone: "its blocks were evicted",
};

const REASONS = {
  place: "a place",
  agent: "its agent's turn",
  memory: "memory",
  prefix: "a shared prefix",
  model: "its model",
  paused: "the end of the pause",
};

/** Why the cache did not hold a prompt. */
export const causeText = (cause) => CAUSES[cause] ?? cause.replaceAll("_", " ");

/** What a job waits for. */
export const reasonText = (reason) => REASONS[reason] ?? reason;
