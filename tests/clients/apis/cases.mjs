// ollama-js against a running agent: one line a case, `ok NAME` or `not ok NAME: why`.
// Usage: node cases.mjs AGENT_URL KEY
import assert from "node:assert/strict";
import { Ollama } from "ollama";
import { run } from "./running.mjs";

const [host, key] = process.argv.slice(2);
const client = new Ollama({ host, headers: { authorization: `Bearer ${key}` } });
const messages = [{ role: "user", content: "Say something about rivers." }];
const ask = { model: "baton", messages, options: { temperature: 0, num_predict: 12 } };
// More answers than may run or wait at the same time.
const many = 20;

const cases = {
  async ollama_js_models() {
    const { models } = await client.list();
    assert.deepEqual(models.map((model) => model.name), ["baton"]);
    assert.equal((await client.ps()).models.length, 1);
    assert.ok((await client.show({ model: "baton" })).capabilities.includes("completion"));
    assert.match((await client.version()).version, /^\d+\.\d+/);
  },
  async ollama_js_chat_whole_and_streamed() {
    const whole = await client.chat(ask);
    assert.ok(whole.done && whole.eval_count <= 12);
    let text = "";
    let last;
    for await (last of await client.chat({ ...ask, stream: true })) text += last.message.content;
    assert.equal(text, whole.message.content);
    assert.ok(last.done && last.eval_count === whole.eval_count);
  },
  async ollama_js_generate_whole_and_streamed() {
    const { messages: _, ...rest } = { ...ask, prompt: messages[0].content };
    const whole = await client.generate(rest);
    let text = "";
    for await (const part of await client.generate({ ...rest, stream: true })) text += part.response;
    assert.equal(text, whole.response);
  },
  async ollama_js_errors_have_their_status() {
    const refused = async (more, status, words) =>
      assert.rejects(client.chat({ ...ask, ...more }), (err) => err.status_code === status && err.message.includes(words));
    await refused({ model: "llama3.2" }, 404, "llama3.2");
    await refused({ options: { stop: Array(17).fill("x") } }, 400, "options.stop");
    await assert.rejects(client.embed({ model: "baton", input: "a" }), /no embedding model/);
    await assert.rejects(client.pull({ model: "llama3.2" }), /hf\.co/);
  },
  async ollama_js_abort_frees_the_place() {
    for (let at = 0; at < many; at += 1) {
      const stream = await client.chat({ ...ask, options: { num_predict: 5000 }, stream: true });
      await stream[Symbol.asyncIterator]().next();
      stream.abort();
    }
    assert.ok((await client.chat({ ...ask, options: { num_predict: 2 } })).done);
  },
};

await run(cases);
