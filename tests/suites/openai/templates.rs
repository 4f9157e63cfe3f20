//! Models whose chat templates are like published ones: both programs answer with them, and say a template's
//! refusal as an error of the request.

use baton_kernels_cpu::Format;
use baton_synthetic::SyntheticModel;
use serde_json::{Value, json};

use super::programs::{self, Program};

/// What Qwen3-Coder, GLM, LFM2.5, functionary, Hy3 and Gemma 2 write, in one template.
const TEMPLATE: &str = "{%- if messages[0].role == 'system' -%}{{ raise_exception('System role not supported') }}{%- endif -%}\
    {{ bos_token }}{{ '-' * 3 }}\
    {%- if tools is iterable and tools | length > 0 -%}<tool_call>\
    {%- for tool in tools -%}{{ tool | tojson(ensure_ascii=False, separators=(',', ':')) }}{%- endfor -%}{%- endif -%}\
    {%- for m in messages -%}\
    {%- if '42' in (m.content or '') -%}{{ raise_exception('The answer is <42> already') }}{%- endif -%}\
    {{ '<|{}|>'.format(m.role) }}\
    {%- if m.role == 'assistant' -%}{%- generation -%}{{ (m.content or '').split('</think>')[-1] }}{%- endgeneration -%}\
    {%- else -%}{% filter trim %}{{ m.content }}{% endfilter %}{%- endif -%}<|end|>{%- endfor -%}\
    {%- if add_generation_prompt -%}<|assistant|>{%- endif -%}";

async fn start() -> (Program, Program, tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("make a folder");
    let path = folder.path().join("peculiar.gguf");
    let model = SyntheticModel { endless: true, ..SyntheticModel::small("llama", Format::Q8_0, 7) };
    let mut writer = model.writer().expect("it fits its format");
    writer.set("tokenizer.chat_template", TEMPLATE);
    std::fs::write(&path, writer.to_bytes().expect("a file")).expect("write the model");
    let (cloud, device) = programs::start_with(&path, "peculiar").await;
    (cloud, device, folder)
}

fn weather() -> Value {
    json!([{ "type": "function", "function": { "name": "weather", "description": "Das Wetter für \"alle\"",
        "parameters": { "type": "object", "properties": { "city": { "type": "string" } } } } }])
}

/// A conversation whose tool's result the template refuses.
fn refused() -> Value {
    json!([
        { "role": "user", "content": "6 * 7?" },
        { "role": "assistant", "content": null, "tool_calls": [{ "id": "call_1", "type": "function",
            "function": { "name": "weather", "arguments": "{}" } }] },
        { "role": "tool", "tool_call_id": "call_1", "content": "42" },
    ])
}

#[tokio::test]
async fn peculiar_templates_are_laid_out_by_both_programs() {
    let (cloud, device, _folder) = start().await;
    let conversations = [
        json!([{ "role": "user", "content": "Hi" }]),
        json!([{ "role": "system", "content": "Be brief." }, { "role": "user", "content": "Hi" }]),
        json!([{ "role": "user", "content": "Hi" }, { "role": "assistant", "content": "<think>x</think>Hello" },
            { "role": "system", "content": "Be long." }, { "role": "user", "content": "Again" }]),
    ];
    for messages in &conversations {
        let body = json!({ "model": "default", "max_tokens": 3, "temperature": 0, "messages": messages });
        for program in [&cloud, &device] {
            let reply = program.chat(&body).await;
            assert_eq!(reply.status, 200, "{} for {messages}: {reply:?}", program.name);
        }
        let mut body = body.clone();
        body["tools"] = weather();
        let reply = device.chat(&body).await;
        assert_eq!(reply.status, 200, "tools for {messages}: {reply:?}");
    }
}

/// What a template refuses is the request's fault in every dialect, so that no client sends it again.
#[tokio::test]
async fn a_refusal_of_a_template_is_an_error_of_the_request() {
    let (cloud, device, _folder) = start().await;
    let tool = json!({ "name": "weather", "parameters": { "type": "object" } });
    let asked = [
        (
            "/v1/chat/completions",
            json!({ "model": "default", "max_tokens": 3, "messages": refused(), "tools": weather() }),
        ),
        (
            "/v1/responses",
            json!({ "model": "default", "max_output_tokens": 16,
                "tools": [{ "type": "function", "name": "weather", "parameters": { "type": "object" } }],
                "input": [{ "role": "user", "content": "6 * 7?" },
                    { "type": "function_call", "call_id": "call_1", "name": "weather", "arguments": "{}" },
                    { "type": "function_call_output", "call_id": "call_1", "output": "42" }] }),
        ),
        (
            "/v1/messages",
            json!({ "model": "default", "max_tokens": 3,
                "tools": [{ "name": "weather", "input_schema": { "type": "object" } }],
                "messages": [{ "role": "user", "content": "6 * 7?" },
                    { "role": "assistant", "content": [{ "type": "tool_use", "id": "call_1", "name": "weather", "input": {} }] },
                    { "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "call_1", "content": "42" }] }] }),
        ),
        (
            "/api/chat",
            json!({ "model": "baton", "tools": [{ "type": "function", "function": tool }],
                "messages": [{ "role": "user", "content": "6 * 7?" },
                    { "role": "assistant", "content": "", "tool_calls": [{ "function": { "name": "weather", "arguments": {} } }] },
                    { "role": "tool", "tool_name": "weather", "content": "42" }] }),
        ),
    ];
    for (path, body) in &asked {
        for stream in [false, true] {
            let mut body = body.clone();
            body["stream"] = json!(stream);
            let reply = device.post(path, &body).await;
            assert_eq!(reply.status, 400, "{path}, stream {stream}: {reply:?}");
            assert!(reply.text.contains("The answer is <42> already"), "{path}, stream {stream}: {reply:?}");
        }
    }
    let messages = json!([{ "role": "user", "content": "Why 42?" }]);
    for stream in [false, true] {
        let body = json!({ "model": "default", "max_tokens": 3, "messages": messages, "stream": stream });
        for program in [&cloud, &device] {
            let reply = program.chat(&body).await;
            assert_eq!(reply.status, 400, "{}, stream {stream}: {reply:?}", program.name);
            assert!(reply.text.contains("The answer is <42> already"), "{}: {reply:?}", program.name);
        }
    }
}
