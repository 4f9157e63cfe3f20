// Vercel's AI SDK and a plain client of event streams against a running agent: one line a case, `ok NAME` or
// `not ok NAME: why`. Usage: node frameworks.mjs AGENT_URL KEY
import assert from "node:assert/strict";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, streamText, tool } from "ai";
import { createEventSource } from "eventsource-client";
import { z } from "zod";
import { run } from "./running.mjs";

const [host, key] = process.argv.slice(2);
const provider = createOpenAICompatible({
  name: "baton", baseURL: `${host}/v1`, apiKey: key, includeUsage: true, supportsStructuredOutputs: true,
});
const say = "Say something about rivers.";
const ask = { model: provider("baton"), prompt: say, temperature: 0, maxOutputTokens: 12, maxRetries: 0 };
const many = 20;

/** Reads the events of one request, as any program without an SDK does. */
async function events(path, body) {
  const source = createEventSource({
    url: host + path,
    method: "POST",
    headers: { "content-type": "application/json", authorization: `Bearer ${key}`, "x-api-key": key },
    body: JSON.stringify(body),
  });
  const heard = [];
  for await (const { event, data } of source) {
    heard.push({ event, data });
    if (data === "[DONE]" || event === "message_stop" || event === "response.completed" || event === "response.incomplete") break;
  }
  source.close();
  return heard;
}

const cases = {
  async vercel_whole_and_streamed() {
    const whole = await generateText(ask);
    assert.ok(whole.text && whole.usage.outputTokens <= 12);
    const stream = streamText(ask);
    let text = "";
    for await (const part of stream.textStream) text += part;
    assert.equal(text, whole.text);
    assert.equal((await stream.usage).outputTokens, whole.usage.outputTokens);
  },
  async vercel_calls_tools() {
    const inputSchema = z.object({ city: z.enum(["Ulm", "Bern"]) });
    const tools = { get_weather: tool({ description: "Says the weather of a city.", inputSchema }) };
    const call = { ...ask, tools, toolChoice: "required", maxOutputTokens: 200 };
    const [made] = (await generateText(call)).toolCalls;
    assert.ok(made.toolName === "get_weather" && ["Ulm", "Bern"].includes(made.input.city), JSON.stringify(made));
    const [streamed] = await streamText(call).toolCalls;
    assert.deepEqual(streamed.input, made.input);
  },
  async vercel_forms() {
    const schema = z.object({ isLarge: z.boolean() });
    const { object } = await generateObject({ ...ask, schema, maxOutputTokens: 60 });
    assert.equal(typeof object.isLarge, "boolean");
  },
  async vercel_errors() {
    const refused = async (more, status) =>
      assert.rejects(generateText({ ...ask, ...more }), (err) => err.statusCode === status || assert.fail(String(err)));
    await refused({ model: provider("gpt-none") }, 404);
    const stranger = createOpenAICompatible({ name: "baton", baseURL: `${host}/v1`, apiKey: "wrong" });
    await refused({ model: stranger("baton") }, 401);
  },
  async vercel_abort_frees_the_place() {
    for (let at = 0; at < many; at += 1) {
      const abort = new AbortController();
      const stream = streamText({ ...ask, maxOutputTokens: 5000, abortSignal: abort.signal, onError() {} });
      for await (const _ of stream.textStream) break;
      abort.abort();
    }
    assert.ok(await generateText({ ...ask, maxOutputTokens: 2 }));
  },
  async events_of_each_dialect_are_well_formed() {
    const messages = [{ role: "user", content: say }];
    const chat = await events("/v1/chat/completions", { messages, max_tokens: 12, temperature: 0, stream: true });
    assert.equal(chat.at(-1).data, "[DONE]");
    const text = chat.slice(0, -1).map(({ data }) => JSON.parse(data).choices[0]?.delta.content ?? "").join("");
    assert.ok(text);
    const message = await events("/v1/messages", { model: "baton", messages, max_tokens: 12, temperature: 0, stream: true });
    assert.deepEqual([message[0].event, message.at(-1).event], ["message_start", "message_stop"]);
    const deltas = message.filter(({ event }) => event === "content_block_delta").map(({ data }) => JSON.parse(data).delta.text);
    assert.equal(deltas.join(""), text);
    const response = await events("/v1/responses", { model: "baton", input: say, max_output_tokens: 12, temperature: 0, stream: true });
    assert.equal(response[0].event, "response.created");
    const said = response.filter(({ event }) => event === "response.output_text.delta").map(({ data }) => JSON.parse(data).delta);
    assert.equal(said.join(""), text);
  },
};

await run(cases);
