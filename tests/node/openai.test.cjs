// The `openai` package of Node against the server at BASE_URL; run by tests/live/test_packages_live.py.
"use strict";

const assert = require("node:assert/strict");
const { test } = require("node:test");
const OpenAI = require("openai");

const client = new OpenAI({ baseURL: process.env.BASE_URL, apiKey: process.env.API_KEY, maxRetries: 0, timeout: 60_000 });
const GREEDY = { model: "local", temperature: 0 };
const NAME = [{ role: "user", content: "What is your name?" }];
const WEATHER = "What is the weather in Rome?";
const PARAMETERS = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const WEATHER_FUNCTION = { name: "get_weather", description: "The weather in a city.", parameters: PARAMETERS };
const PERSON = {
  type: "object",
  properties: { colour: { enum: ["red", "green"] } },
  required: ["colour"],
  additionalProperties: false,
};

test("chat.completions.create, whole and streamed", async () => {
  const whole = await client.chat.completions.create({ ...GREEDY, messages: NAME });
  assert.match(whole.choices[0].message.content, /localchat/);
  assert.equal(whole.choices[0].finish_reason, "stop");
  let text = "";
  let usage;
  const options = { stream: true, stream_options: { include_usage: true } };
  for await (const chunk of await client.chat.completions.create({ ...GREEDY, messages: NAME, ...options })) {
    text += chunk.choices[0]?.delta.content ?? "";
    usage = chunk.usage ?? usage;
  }
  assert.equal(text, whole.choices[0].message.content);
  assert.equal(usage.completion_tokens, whole.usage.completion_tokens);
});

test("chat.completions.runTools, whole and streamed", async () => {
  for (const stream of [false, true]) {
    const cities = [];
    const get_weather = ({ city }) => {
      cities.push(city);
      return '{"temperature": 21}';
    };
    const run = client.chat.completions.runTools({
      ...GREEDY,
      stream,
      messages: [{ role: "user", content: WEATHER }],
      tools: [{ type: "function", function: { ...WEATHER_FUNCTION, function: get_weather, parse: JSON.parse } }],
    });
    assert.match(await run.finalContent(), /21/);
    assert.deepEqual(cities, ["Rome"]);
  }
});

test("chat.completions.create with a JSON Schema", async () => {
  const response_format = { type: "json_schema", json_schema: { name: "person", schema: PERSON, strict: true } };
  const reply = await client.chat.completions.create({ ...GREEDY, messages: NAME, response_format });
  assert.ok(["red", "green"].includes(JSON.parse(reply.choices[0].message.content).colour));
});

test("responses.create, retrieve and delete", async () => {
  const response = await client.responses.create({ ...GREEDY, input: "What is your name?" });
  assert.equal(response.status, "completed");
  assert.match(response.output_text, /localchat/);
  assert.equal((await client.responses.retrieve(response.id)).output_text, response.output_text);
  await client.responses.delete(response.id);
  await assert.rejects(client.responses.retrieve(response.id), OpenAI.NotFoundError);
});

test("responses.stream", async () => {
  const stream = client.responses.stream({ ...GREEDY, input: "What is your name?" });
  const kinds = [];
  let text = "";
  for await (const event of stream) {
    kinds.push(event.type);
    if (event.type === "response.output_text.delta") text += event.delta;
  }
  const final = await stream.finalResponse();
  assert.equal(final.output_text, text);
  assert.deepEqual([kinds[0], kinds.at(-1)], ["response.created", "response.completed"]);
});

test("responses.parse", async () => {
  const text = { format: { type: "json_schema", name: "person", schema: PERSON, strict: true } };
  const response = await client.responses.parse({ ...GREEDY, input: "Ada is green.", text });
  assert.ok(["red", "green"].includes(response.output_parsed.colour));
});

test("responses with tools in a loop", async () => {
  const tools = [{ type: "function", strict: false, ...WEATHER_FUNCTION }];
  const first = await client.responses.create({ ...GREEDY, input: WEATHER, tools });
  const call = first.output.find((item) => item.type === "function_call");
  assert.deepEqual(JSON.parse(call.arguments), { city: "Rome" });
  const input = [{ type: "function_call_output", call_id: call.call_id, output: '{"temperature": 21}' }];
  const second = await client.responses.create({ ...GREEDY, input, tools, previous_response_id: first.id });
  assert.match(second.output_text, /21/);
});

test("a stream that is aborted ends, and errors have their classes", async () => {
  const stream = client.chat.completions.stream({ ...GREEDY, messages: NAME, max_tokens: 400, ignore_eos: true });
  await assert.rejects(async () => {
    for await (const chunk of stream) {
      if (chunk.choices[0].delta.content) stream.abort();
    }
    await stream.done();
  }, OpenAI.APIUserAbortError);
  await assert.rejects(client.chat.completions.create({ ...GREEDY, messages: [] }), OpenAI.BadRequestError);
  const keyless = client.withOptions({ apiKey: "wrong" });
  await assert.rejects(keyless.models.list(), OpenAI.AuthenticationError);
});

test("models.list", async () => {
  const models = await client.models.list();
  assert.equal(models.data.length, 1);
});
