// The `@anthropic-ai/sdk` package of Node against the server at BASE_URL; run by tests/live/test_packages_live.py.
"use strict";

const assert = require("node:assert/strict");
const { test } = require("node:test");
const Anthropic = require("@anthropic-ai/sdk");

const baseURL = process.env.BASE_URL.replace(/\/v1$/, "");
const client = new Anthropic({ baseURL, apiKey: process.env.API_KEY, maxRetries: 0, timeout: 60_000 });
const GREEDY = { model: "claude", temperature: 0, max_tokens: 80 };
const NAME = [{ role: "user", content: "What is your name?" }];
const QUESTION = [{ role: "user", content: "What is the weather in Rome?" }];
const TOOLS = [
  {
    name: "get_weather",
    description: "The weather in a city.",
    input_schema: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
  },
];

test("messages.create, and the stream helper gathers the same message", async () => {
  const whole = await client.messages.create({ ...GREEDY, messages: NAME });
  assert.match(whole.content[0].text, /localchat/);
  assert.equal(whole.stop_reason, "end_turn");
  let text = "";
  const stream = client.messages.stream({ ...GREEDY, messages: NAME }).on("text", (delta) => (text += delta));
  const final = await stream.finalMessage();
  assert.equal(text, whole.content[0].text);
  assert.deepEqual(final.content, whole.content);
  assert.equal(final.usage.output_tokens, whole.usage.output_tokens);
});

test("tools in a loop, whole and streamed", async () => {
  for (const stream of [false, true]) {
    const ask = (messages) =>
      stream
        ? client.messages.stream({ ...GREEDY, messages, tools: TOOLS }).finalMessage()
        : client.messages.create({ ...GREEDY, messages, tools: TOOLS });
    const first = await ask(QUESTION);
    const call = first.content.find((block) => block.type === "tool_use");
    assert.deepEqual([first.stop_reason, call.input], ["tool_use", { city: "Rome" }]);
    const result = { type: "tool_result", tool_use_id: call.id, content: '{"temperature": 21}' };
    const history = [{ role: "assistant", content: first.content }, { role: "user", content: [result] }];
    const second = await ask([...QUESTION, ...history]);
    assert.equal(second.stop_reason, "end_turn");
    assert.match(second.content[0].text, /21/);
  }
});

test("thinking is a block that can be sent back", async () => {
  const ask = [{ role: "user", content: "Think first: what is your name?" }];
  const thinking = { type: "enabled", budget_tokens: 1024 };
  const first = await client.messages.stream({ ...GREEDY, max_tokens: 2000, messages: ask, thinking }).finalMessage();
  assert.deepEqual(first.content.map((block) => block.type), ["thinking", "text"]);
  assert.ok(first.content[0].signature);
  const history = [...ask, { role: "assistant", content: first.content }, ...NAME];
  assert.ok((await client.messages.create({ ...GREEDY, messages: history })).content.length > 0);
});

test("messages.countTokens counts as the message does", async () => {
  const counted = await client.messages.countTokens({ model: "claude", messages: QUESTION, tools: TOOLS });
  const { usage } = await client.messages.create({ ...GREEDY, max_tokens: 1, messages: QUESTION, tools: TOOLS });
  assert.equal(counted.input_tokens, usage.input_tokens + usage.cache_read_input_tokens);
});

test("errors have their classes and the id of the request", async () => {
  await assert.rejects(client.messages.create({ ...GREEDY, messages: [] }), (error) => {
    assert.ok(error instanceof Anthropic.BadRequestError);
    assert.ok(error.requestID);
    return true;
  });
  const keyless = client.withOptions({ apiKey: "wrong" });
  await assert.rejects(keyless.messages.create({ ...GREEDY, messages: NAME }), Anthropic.AuthenticationError);
});
