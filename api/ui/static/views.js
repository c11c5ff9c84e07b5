// The one table of views. A view is a file in `views/` whose default export is its component; it
// gets `route` (`{name, parts, query}`). Order here is order in the navigation, and its number key.

/** `name` is the first part of the hash; `hint` says what the view answers. */
export const VIEWS = [
  { name: "", title: "Now", hint: "What the service does now", load: () => import("./views/now.js") },
  { name: "chat", title: "Chat", hint: "Conversations with the model", load: () => import("./views/chat.js") },
  { name: "jobs", title: "Jobs", hint: "All jobs, and where the time of one went", load: () => import("./views/jobs.js") },
  { name: "agents", title: "Agents", hint: "Contexts of agents and their cache", load: () => import("./views/agents.js") },
  { name: "events", title: "Events", hint: "The event log", load: () => import("./views/events.js") },
  { name: "batches", title: "Batches", hint: "Batches and their progress", load: () => import("./views/batches.js") },
  { name: "schedules", title: "Schedules", hint: "Jobs that come again, and what they missed", load: () => import("./views/schedules.js") },
  { name: "webhooks", title: "Webhooks", hint: "Deliveries of webhooks", load: () => import("./views/webhooks.js") },
  { name: "models", title: "Models", hint: "What fits this machine: download and load", load: () => import("./views/models.js") },
  { name: "setup", title: "Set up", hint: "Lines to paste into clients", load: () => import("./views/setup.js") },
];

/** Return the view of a route; the first one for an unknown name. */
export const viewOf = (name) => VIEWS.find((view) => view.name === name) ?? VIEWS[0];
