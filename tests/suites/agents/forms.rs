//! Forms of answers behind a thought that the prompt has opened, in every dialect, whole and streamed: the
//! content is of the form, and the thought has its own place.

use baton_synthetic::Script;
use serde_json::{Value, json};

use crate::played::Played;

/// The only answer of the schema.
const SATURN: &str = "{\"name\": \"Saturn\"}";
/// Lays out a conversation and opens the thought; the opening tag is the cue.
const OPENED: &str = "{% for m in messages %}<|user|>{{ m.content }}<|end|>{% endfor %}\
    {% if add_generation_prompt %}<|assistant|><think>{% endif %}";

/// What an answer holds, in any dialect.
#[derive(Debug, Default, PartialEq)]
struct Answer {
    content: String,
    thinking: String,
    /// Names and arguments of calls.
    calls: Vec<(String, Value)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dialect {
    Chat,
    Responses,
    Messages,
    Ollama,
    OllamaGenerate,
}

const DIALECTS: [Dialect; 5] =
    [Dialect::Chat, Dialect::Responses, Dialect::Messages, Dialect::Ollama, Dialect::OllamaGenerate];

fn schema() -> Value {
    json!({ "type": "object", "properties": { "name": { "enum": ["Saturn"] } }, "required": ["name"],
        "additionalProperties": false })
}

/// A program whose model plays this script behind the opened thought.
async fn opened(pieces: &[&str], is_endless: bool) -> Played {
    let script = Script { is_endless, ..Script::new("<think>", pieces) };
    Played::with_template(&[script], OPENED).await
}

impl Dialect {
    fn path(self) -> &'static str {
        match self {
            Dialect::Chat => "/v1/chat/completions",
            Dialect::Responses => "/v1/responses",
            Dialect::Messages => "/v1/messages",
            Dialect::Ollama => "/api/chat",
            Dialect::OllamaGenerate => "/api/generate",
        }
    }

    /// Returns a request for an answer of the schema with at most so many tokens.
    fn body(self, tokens: u32) -> Value {
        let messages = json!([{ "role": "user", "content": "Which planet?" }]);
        match self {
            Dialect::Chat => json!({ "model": "baton", "messages": messages, "max_tokens": tokens,
                "response_format": { "type": "json_schema", "json_schema": { "name": "p", "schema": schema() } } }),
            Dialect::Responses => {
                json!({ "model": "baton", "input": "Which planet?", "max_output_tokens": tokens,
                "text": { "format": { "type": "json_schema", "name": "p", "schema": schema() } } })
            }
            Dialect::Messages => json!({ "model": "baton", "messages": messages, "max_tokens": tokens,
                "thinking": { "type": "enabled", "budget_tokens": 1024 },
                "output_config": { "format": { "type": "json_schema", "schema": schema() } } }),
            Dialect::Ollama => json!({ "model": "baton", "messages": messages, "format": schema(),
                "options": { "num_predict": tokens } }),
            Dialect::OllamaGenerate => {
                json!({ "model": "baton", "prompt": "Which planet?", "format": schema(),
                "options": { "num_predict": tokens } })
            }
        }
    }

    /// Makes it a request that must call the tool `look`, if the dialect can say so.
    fn demand_call(self, body: &mut Value) -> bool {
        let parameters = json!({ "type": "object", "properties": { "at": { "enum": ["Saturn"] } },
            "required": ["at"], "additionalProperties": false });
        let function = json!({ "name": "look", "parameters": parameters });
        match self {
            Dialect::Chat => {
                body["tools"] = json!([{ "type": "function", "function": function }]);
                body["tool_choice"] = json!("required");
            }
            Dialect::Responses => {
                body["tools"] = json!([{ "type": "function", "name": "look", "parameters": parameters }]);
                body["tool_choice"] = json!("required");
            }
            Dialect::Messages => {
                body["tools"] = json!([{ "name": "look", "input_schema": parameters }]);
                body["tool_choice"] = json!({ "type": "any" });
            }
            Dialect::Ollama | Dialect::OllamaGenerate => return false,
        }
        true
    }

    /// Asks, and reads the answer as a client of the dialect does.
    async fn ask(self, url: &str, body: &Value, streamed: bool) -> Answer {
        let mut body = body.clone();
        body["stream"] = json!(streamed);
        let reply = baton_e2e::http::client().post(format!("{url}{}", self.path())).json(&body).send().await;
        let reply = reply.expect("the program replies");
        let status = reply.status();
        let text = reply.text().await.expect("the reply ends");
        assert_eq!(status, 200, "{self:?}: {text}");
        if streamed { self.streamed(&text) } else { self.whole(&parsed(&text)) }
    }

    fn whole(self, reply: &Value) -> Answer {
        let mut answer = Answer::default();
        match self {
            Dialect::Chat => answer.add_message(&reply["choices"][0]["message"]),
            Dialect::Responses => {
                reply["output"].as_array().into_iter().flatten().for_each(|item| answer.add_item(item));
            }
            Dialect::Messages => {
                for block in reply["content"].as_array().into_iter().flatten() {
                    answer.content.push_str(text_of(&block["text"]));
                    answer.thinking.push_str(text_of(&block["thinking"]));
                    if block["type"] == "tool_use" {
                        answer.calls.push((text_of(&block["name"]).to_owned(), block["input"].clone()));
                    }
                }
            }
            Dialect::Ollama => answer.add_message(&reply["message"]),
            Dialect::OllamaGenerate => {
                answer.content.push_str(text_of(&reply["response"]));
                answer.thinking.push_str(text_of(&reply["thinking"]));
            }
        }
        answer
    }

    fn streamed(self, text: &str) -> Answer {
        let mut answer = Answer::default();
        match self {
            Dialect::Chat => data(text).for_each(|chunk| answer.add_message(&chunk["choices"][0]["delta"])),
            Dialect::Responses => {
                let last = data(text).last().expect("there are events");
                assert_eq!(last["type"], "response.completed", "{text}");
                return self.whole(&last["response"]);
            }
            Dialect::Messages => {
                for event in data(text) {
                    let delta = &event["delta"];
                    answer.content.push_str(text_of(&delta["text"]));
                    answer.thinking.push_str(text_of(&delta["thinking"]));
                    if event["content_block"]["type"] == "tool_use" {
                        answer.calls.push((text_of(&event["content_block"]["name"]).to_owned(), json!("")));
                    }
                    answer.add_arguments(text_of(&delta["partial_json"]));
                }
            }
            Dialect::Ollama | Dialect::OllamaGenerate => {
                for line in text.lines().map(parsed) {
                    let more = self.whole(&line);
                    answer.content.push_str(&more.content);
                    answer.thinking.push_str(&more.thinking);
                }
            }
        }
        answer.parse_arguments();
        answer
    }
}

impl Answer {
    fn add_message(&mut self, message: &Value) {
        self.content.push_str(text_of(&message["content"]));
        self.thinking.push_str(text_of(&message["reasoning_content"]));
        self.thinking.push_str(text_of(&message["thinking"]));
        for call in message["tool_calls"].as_array().into_iter().flatten() {
            if let Some(name) = call["function"]["name"].as_str() {
                self.calls.push((name.to_owned(), json!("")));
            }
            self.add_arguments(text_of(&call["function"]["arguments"]));
        }
        self.parse_arguments();
    }

    fn add_item(&mut self, item: &Value) {
        let text = text_of(&item["content"][0]["text"]);
        match text_of(&item["type"]) {
            "message" => self.content.push_str(text),
            "reasoning" => self.thinking.push_str(text),
            _ => self.calls.push((text_of(&item["name"]).to_owned(), parsed(text_of(&item["arguments"])))),
        }
    }

    fn add_arguments(&mut self, more: &str) {
        if let Some((_, arguments)) = self.calls.last_mut().filter(|_| !more.is_empty()) {
            *arguments = json!(format!("{}{more}", text_of(arguments)));
        }
    }

    /// Parses arguments that are complete.
    fn parse_arguments(&mut self) {
        for (_, arguments) in &mut self.calls {
            if let Some(whole) = arguments.as_str().and_then(|text| serde_json::from_str(text).ok()) {
                *arguments = whole;
            }
        }
    }
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|err| panic!("{err}: {text}"))
}

fn text_of(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Returns the data of server-sent events.
fn data(text: &str) -> impl Iterator<Item = Value> {
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    data.filter(|data| *data != "[DONE]").map(parsed)
}

#[tokio::test]
async fn content_has_the_form_behind_a_thought() {
    let pieces = ["Hm, a planet", " it is.", "\n</think>\n\n", "{\"name\": ", "\"Saturn\"}"];
    let played = opened(&pieces, false).await;
    for dialect in DIALECTS {
        for streamed in [false, true] {
            let answer = dialect.ask(played.url(), &dialect.body(600), streamed).await;
            let want =
                Answer { content: SATURN.into(), thinking: "Hm, a planet it is.".into(), calls: Vec::new() };
            assert_eq!(answer, want, "{dialect:?}, streamed: {streamed}");
        }
    }
}

#[tokio::test]
async fn a_thought_without_an_end_leaves_room_for_the_form() {
    let played = opened(&["Hm", " so", " on"], true).await;
    for dialect in DIALECTS {
        for streamed in [false, true] {
            let place = format!("{dialect:?}, streamed: {streamed}");
            let answer = dialect.ask(played.url(), &dialect.body(300), streamed).await;
            assert_eq!(answer.content, SATURN, "{place}");
            assert!(answer.thinking.starts_with("Hm so on"), "{place}: {answer:?}");
            let short = dialect.ask(played.url(), &dialect.body(60), streamed).await;
            let want = Answer { content: SATURN.into(), ..Answer::default() };
            assert_eq!(short, want, "{place}: there is no room for a thought");
            let mut called = dialect.body(300);
            if dialect.demand_call(&mut called) {
                let answer = dialect.ask(played.url(), &called, streamed).await;
                let want = vec![("look".to_owned(), json!({ "at": "Saturn" }))];
                assert_eq!((answer.calls, answer.content.as_str()), (want, ""), "{place}");
            }
        }
    }
    let mut silent = Dialect::Ollama.body(300);
    silent["think"] = json!(false);
    let answer = Dialect::Ollama.ask(played.url(), &silent, false).await;
    assert_eq!(answer, Answer { content: SATURN.into(), ..Answer::default() });
}
