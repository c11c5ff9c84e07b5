// The conformance tests of Durable Streams, for vitest; CONFORMANCE_TEST_URL is the server.
import { runConformanceTests } from "@durable-streams/server-conformance-tests";

runConformanceTests({ baseUrl: process.env.CONFORMANCE_TEST_URL, longPollTimeoutMs: 20_000 });
