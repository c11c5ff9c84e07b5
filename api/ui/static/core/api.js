// Requests to the public API. Every view gets its data here or from `stream.js`.
import { refuseKey, session } from "./session.js";

/** Root of the service, also behind a proxy that adds a path. */
export const ROOT = new URL("../../../", import.meta.url);

const KEY_CODES = new Set(["invalid_api_key"]);

/** A refusal of the service, or its absence (`status` 0). */
export class ApiError extends Error {
  constructor(status, code, message, retryAfterS = null) {
    super(message);
    this.name = "ApiError";
    this.status = status;
    this.code = code;
    this.retryAfterS = retryAfterS;
    /** Whether only another key changes the reply. */
    this.denied = status === 401 || status === 403;
  }
}

/** Return the address of a path of the API; a list repeats a parameter, empty ones are left out. */
export function address(path, query = {}) {
  const url = new URL(path.replace(/^\//, ""), ROOT);
  for (const [name, values] of Object.entries(query)) {
    for (const value of [values].flat()) {
      if (value !== null && value !== undefined && value !== "") url.searchParams.append(name, value);
    }
  }
  return url;
}

/** Send a request and return its `Response` once its status is one of success. */
export async function send(method, path, { query, body, signal, headers = {} } = {}) {
  const { key } = session.get();
  const sent = { accept: "application/json", ...headers };
  if (key) sent["x-api-key"] = key;
  if (body !== undefined) sent["content-type"] = "application/json";
  let response;
  try {
    response = await fetch(address(path, query), {
      method,
      headers: sent,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
      cache: "no-store",
      credentials: "same-origin",
      redirect: "error",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "unreachable", "The service does not answer.");
  }
  if (!response.ok) throw await failure(response, key);
  return response;
}

async function failure(response, key) {
  const retryAfterS = Number(response.headers.get("retry-after")) || null;
  let problem = {};
  try {
    problem = await response.json();
  } catch {
    // Not JSON: the status says enough.
  }
  const code = problem.code ?? problem.error?.code ?? problem.error?.type ?? "";
  const message = problem.detail ?? problem.error?.message ?? problem.title ?? "";
  if (KEY_CODES.has(code) && key === session.get().key) refuseKey(message);
  return new ApiError(response.status, code, message || `status ${response.status}`, retryAfterS);
}

/** Return the JSON reply to a GET. */
export async function get(path, query, signal) {
  return (await send("GET", path, { query, signal })).json();
}

/** Return the JSON reply to a POST. */
export async function post(path, body, signal) {
  return (await send("POST", path, { body, signal })).json();
}

/** Return the JSON reply to another method; `null` where it has no body. */
export async function change(method, path, body) {
  const text = await (await send(method, path, { body })).text();
  return text ? JSON.parse(text) : null;
}
