// What the page lets its reader do to jobs and models.
import { post } from "./api.js";
import { announce } from "./announce.js";

/** Cancel a job and return it. */
export async function cancelJob(id) {
  const job = await post(`v1/jobs/${encodeURIComponent(id)}/cancel`);
  announce(`The job is ${job.status === "running" ? "being cancelled" : job.status}.`);
  return job;
}

/** Put a job that ended without an answer back into its queue. */
export async function retryJob(id) {
  const job = await post(`v1/jobs/${encodeURIComponent(id)}/retry`);
  announce("The job waits again.");
  return job;
}

/** Let the workers load another model; returns the swap. */
export async function loadModel(name) {
  const swap = await post(`admin/models/${encodeURIComponent(name)}/load`);
  announce(`The workers change to ${name}.`);
  return swap;
}
