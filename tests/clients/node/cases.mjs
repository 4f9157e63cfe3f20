// openai-node and the Vercel AI SDK against a running service: one line a case, `ok NAME` or `not ok NAME: why`.
// Usage: node cases.mjs BASE_URL KEY, with the keys BATON_NO_CHAT_KEY and BATON_ONCE_KEYS in the environment
//        node cases.mjs BASE_URL KEY interrupted PID CLIENT, where PID is the service's and CLIENT openai_node or ai_sdk
import assert from "node:assert/strict";
import OpenAI from "openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, jsonSchema, Output, streamText, tool } from "ai";
import { run } from "./running.mjs";

const [base, key, only, pid, name] = process.argv.slice(2);
const noChatKey = process.env.BATON_NO_CHAT_KEY;
const onceKeys = (process.env.BATON_ONCE_KEYS ?? "").split(",");
const model = "demo-cloud";
const messages = [{ role: "user", content: "Say something about rivers." }];
const parameters = {
  type: "object",
  properties: { city: { type: "string", enum: ["Ulm", "Bern"] }, days: { type: "integer", minimum: 1, maximum: 9 } },
  required: ["city", "days"],
  additionalProperties: false,
};
const tools = [{ type: "function", function: { name: "get_weather", description: "The weather of a city.", parameters } }];
const clientOf = (apiKey) => new OpenAI({ baseURL: `${base}/v1`, apiKey, maxRetries: 0, timeout: 60_000 });
const client = clientOf(key);
const chat = (more) => client.chat.completions.create({ model, messages, temperature: 0, max_tokens: 12, ...more });
const providerOf = (apiKey) => createOpenAICompatible({ name: "baton", baseURL: `${base}/v1`, apiKey, includeUsage: true, supportsStructuredOutputs: true });
const provider = providerOf(key);
const ai = { model: provider(model), temperature: 0, maxOutputTokens: 12, maxRetries: 0, prompt: messages[0].content };
const isWeather = ({ city, days, ...rest }) => {
  assert.ok(["Ulm", "Bern"].includes(city) && Number.isInteger(days) && days >= 1 && days <= 9);
  assert.deepEqual(rest, {});
};
const slots = async () => (await (await fetch(`${base}/v1/stats`, { headers: { authorization: `Bearer ${key}` } })).json()).slots_used;
const freed = async () => {
  const deadline = Date.now() + 5000;
  while ((await slots()) > 0) {
    assert.ok(Date.now() < deadline, "the slot is still held");
    await new Promise((done) => setTimeout(done, 20));
  }
};
const long = { type: "json_schema", json_schema: { name: "long", schema: { type: "array", items: { type: "boolean" }, minItems: 400 } } };

const cases = {
  async openai_node_whole_and_streamed() {
    const whole = await chat();
    assert.equal(whole.model, model);
    let text = "";
    let usage;
    for await (const chunk of await chat({ stream: true, stream_options: { include_usage: true } })) {
      text += chunk.choices[0]?.delta?.content ?? "";
      usage = chunk.usage ?? usage;
    }
    assert.equal(text, whole.choices[0].message.content);
    assert.deepEqual(usage.completion_tokens, whole.usage.completion_tokens);
    assert.ok((await client.models.list()).data.some((card) => card.id === model));
  },
  async openai_node_continues_a_text() {
    const ask = { model, prompt: "One, two, three,", temperature: 0, max_tokens: 6 };
    const whole = await client.completions.create(ask);
    let text = "";
    for await (const chunk of await client.completions.create({ ...ask, stream: true })) text += chunk.choices[0]?.text ?? "";
    assert.equal(text, whole.choices[0].text);
    assert.equal(whole.object, "text_completion");
  },
  async openai_node_errors() {
    await assert.rejects(chat({ n: 2 }), (err) => err instanceof OpenAI.BadRequestError && err.param === "n");
    await assert.rejects(chat({ model: "none" }), (err) => err instanceof OpenAI.NotFoundError);
  },
  async openai_node_keys_that_may_not() {
    const ask = { model, messages, max_tokens: 2 };
    const wrong = (err) => err instanceof OpenAI.AuthenticationError && err.code === "invalid_api_key" && err.type === "invalid_request_error";
    await assert.rejects(clientOf("nonsense").models.list(), wrong);
    await assert.rejects(clientOf("nonsense").chat.completions.create(ask), wrong);
    const noScope = (err) => err instanceof OpenAI.PermissionDeniedError && err.code === "insufficient_permissions";
    await assert.rejects(clientOf(noChatKey).chat.completions.create(ask), noScope);
    const once = clientOf(onceKeys[0]);
    await once.chat.completions.create(ask);
    const limited = (err) => err instanceof OpenAI.RateLimitError && err.code === "rate_limit_exceeded" && Number(err.headers.get("retry-after")) >= 1;
    await assert.rejects(once.chat.completions.create(ask), limited);
  },
  async openai_node_stop() {
    const text = (await chat({ max_tokens: 24 })).choices[0].message.content;
    const at = Math.floor(text.length / 2);
    const stop = text.slice(at, at + 3);
    const reply = (await chat({ max_tokens: 24, stop: ["never said", stop] })).choices[0];
    assert.deepEqual([reply.message.content, reply.finish_reason], [text.slice(0, text.indexOf(stop)), "stop"]);
  },
  async openai_node_tools() {
    const reply = (await chat({ tools, tool_choice: "required", max_tokens: 200 })).choices[0];
    assert.equal(reply.finish_reason, "tool_calls");
    isWeather(JSON.parse(reply.message.tool_calls[0].function.arguments));
    const stream = client.chat.completions.stream({ model, messages, temperature: 0, max_tokens: 200, tools, tool_choice: "required" });
    const streamed = (await stream.finalChatCompletion()).choices[0];
    assert.equal(streamed.message.tool_calls[0].function.arguments, reply.message.tool_calls[0].function.arguments);
    const back = [...messages, reply.message, { role: "tool", tool_call_id: reply.message.tool_calls[0].id, content: "It rains." }];
    assert.equal((await chat({ messages: back, tools, tool_choice: "none" })).choices[0].message.role, "assistant");
  },
  async openai_node_format() {
    const schema = { type: "json_schema", json_schema: { name: "weather", schema: parameters, strict: true } };
    isWeather(JSON.parse((await chat({ response_format: schema, max_tokens: 100 })).choices[0].message.content));
  },
  async openai_node_cancel() {
    const stream = await chat({ stream: true, max_tokens: 600, response_format: long });
    for await (const chunk of stream) {
      if (chunk.choices[0]?.delta?.content) break;
    }
    stream.controller.abort();
    await freed();
  },
  async openai_node_l_cap() {
    const chunks = [];
    for await (const chunk of await chat({ stream: true, baton: { scene: "chat", assist_tokens: 4 } })) chunks.push(chunk);
    assert.equal(chunks[0].baton.assist_tokens, 4);
    assert.equal(chunks.at(-1).choices[0].finish_reason, "length");
    assert.equal(chunks.at(-1).baton.handoff.next_index, 4);
  },
  async ai_sdk_whole_and_streamed() {
    const whole = await generateText(ai);
    const streamed = streamText(ai);
    let text = "";
    for await (const part of streamed.textStream) text += part;
    assert.equal(text, whole.text);
    assert.equal(await streamed.finishReason, whole.finishReason);
    assert.equal((await streamed.usage).outputTokens, whole.usage.outputTokens);
  },
  async ai_sdk_errors() {
    await assert.rejects(generateText({ ...ai, model: provider("none") }), (err) => err.statusCode === 404);
    await assert.rejects(generateText({ ...ai, temperature: 9 }), (err) => err.statusCode === 400);
  },
  async ai_sdk_keys_that_may_not() {
    const ask = (key) => generateText({ ...ai, maxOutputTokens: 2, model: providerOf(key)(model) });
    await assert.rejects(ask("nonsense"), (err) => err.statusCode === 401 && err.responseBody.includes("invalid_api_key"));
    await assert.rejects(ask(noChatKey), (err) => err.statusCode === 403);
    await ask(onceKeys[1]);
    await assert.rejects(ask(onceKeys[1]), (err) => err.statusCode === 429 && Number(err.responseHeaders["retry-after"]) >= 1);
  },
  async ai_sdk_stop() {
    const { text } = await generateText({ ...ai, maxOutputTokens: 24 });
    const at = Math.floor(text.length / 2);
    const stop = text.slice(at, at + 3);
    const stopped = await generateText({ ...ai, maxOutputTokens: 24, stopSequences: [stop] });
    assert.deepEqual([stopped.text, stopped.finishReason], [text.slice(0, text.indexOf(stop)), "stop"]);
  },
  async ai_sdk_tools() {
    const weather = tool({ description: "The weather of a city.", inputSchema: jsonSchema(parameters) });
    const demanded = { ...ai, maxOutputTokens: 200, tools: { get_weather: weather }, toolChoice: "required" };
    const whole = await generateText(demanded);
    assert.equal(whole.finishReason, "tool-calls");
    isWeather(whole.toolCalls[0].input);
    const streamed = streamText(demanded);
    await streamed.consumeStream();
    isWeather((await streamed.toolCalls)[0].input);
  },
  async ai_sdk_format() {
    const output = Output.object({ schema: jsonSchema(parameters) });
    isWeather((await generateText({ ...ai, maxOutputTokens: 100, output })).output);
  },
  async ai_sdk_cancel() {
    const stop = new AbortController();
    const streamed = streamText({ ...ai, maxOutputTokens: 600, abortSignal: stop.signal, providerOptions: { baton: { response_format: long } }, onError() {} });
    for await (const part of streamed.textStream) {
      if (part) break;
    }
    stop.abort();
    await freed();
  },
  async ai_sdk_l_cap() {
    const streamed = streamText({ ...ai, providerOptions: { baton: { baton: { scene: "chat", assist_tokens: 4 } } } });
    await streamed.consumeStream();
    assert.equal(await streamed.finishReason, "length");
  },
};

// Streams whose service is told to stop after the first chunk: they must end with an error.
const cut = /the service stopped before the answer's end/;
const interrupted = {
  async openai_node() {
    let chunks = 0;
    const read = async () => {
      for await (const chunk of await chat({ stream: true, max_tokens: 600, response_format: long })) {
        if (chunks === 0) process.kill(Number(pid), "SIGTERM");
        chunks += 1;
        assert.ok(!chunk.choices[0]?.finish_reason, "a normal end");
      }
    };
    await assert.rejects(read(), (err) => err instanceof OpenAI.APIError && cut.test(err.message));
    assert.ok(chunks > 0);
  },
  async ai_sdk() {
    let texts = 0;
    const errors = [];
    const streamed = streamText({ ...ai, maxOutputTokens: 600, providerOptions: { baton: { response_format: long } }, onError() {} });
    for await (const part of streamed.fullStream) {
      if (part.type === "text-delta" && texts++ === 0) process.kill(Number(pid), "SIGTERM");
      if (part.type === "error") errors.push(part.error);
      if (part.type === "finish") assert.equal(part.finishReason, "error");
    }
    assert.ok(texts > 0);
    assert.match(String(errors[0]?.message ?? errors[0]), cut);
  },
};

await run(only === "interrupted" ? { [`${name}_interrupted`]: interrupted[name] } : cases);
