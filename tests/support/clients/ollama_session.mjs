// A session of the JavaScript client: node ollama_session.mjs CLIENT BASE_URL; prints its results as JSON.
const [client, host] = process.argv.slice(2);
const { Ollama } = await import(client);
const ollama = new Ollama({ host });
const model = "semantic-demo";
const options = { temperature: 0, num_predict: 64 };
const question = { role: "user", content: "What is the capital of France?" };
const tool = {
  type: "function",
  function: {
    name: "get_weather",
    description: "Get the weather of a city",
    parameters: {
      type: "object",
      properties: { location: { type: "string" } },
      required: ["location"],
    },
  },
};

const found = { pieces: [] };
found.models = (await ollama.list()).models.map((one) => one.name);
found.shown = (await ollama.show({ model })).capabilities;
found.loaded = (await ollama.ps()).models.map((one) => one.name);
found.whole = await ollama.chat({ model, messages: [question], options });
for await (const piece of await ollama.chat({ model, messages: [question], options, stream: true })) {
  found.pieces.push(piece.message.content);
  found.last = piece;
}
found.generated = await ollama.generate({ model, prompt: question.content, options });
const asked = [{ role: "user", content: "What is the weather in Paris?" }];
const called = await ollama.chat({ model, messages: asked, tools: [tool], options });
found.calls = called.message.tool_calls;
const result = { role: "tool", tool_name: "get_weather", content: "Sunny, 21 degrees." };
const messages = [...asked, called.message, result];
found.second = await ollama.chat({ model, messages, tools: [tool], options });
for (const name of ["pull", "delete"]) {
  found[name] = await ollama[name]({ model }).then(() => "done", (error) => error.message);
}
const endless = await ollama.generate({ model, prompt: "Tell me a story.", stream: true });
setTimeout(() => endless.abort(), 0);
found.aborted = await (async () => {
  for await (const _ of endless);
  return "whole";
})().catch((error) => error.name);
console.log(JSON.stringify(found));
