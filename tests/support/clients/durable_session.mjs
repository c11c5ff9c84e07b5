// Reads a stream: node durable_session.mjs CLIENT URL LIVE [OFFSET]; prints its batches as lines of JSON.
const [client, url, live, offset = "-1"] = process.argv.slice(2);
const { stream } = await import(client);
const backoffOptions = { initialDelay: 50, maxDelay: 500, multiplier: 2 };
const reading = await stream({ url, live, offset, backoffOptions });
reading.subscribeJson(async ({ items, offset, streamClosed }) => {
  console.log(JSON.stringify({ items, offset, streamClosed }));
});
await reading.closed;
