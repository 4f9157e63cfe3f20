//! Random walks through schemas and grammars: whatever the model prefers, the answer is a sentence of the
//! grammar.

use std::path::Path;

use baton_engine::Model;
use baton_engine::gguf::Gguf;
use baton_engine::sampling::{Sampler, SamplingParams};
use baton_kernels_cpu::Format;
use baton_openai::tool_calls::{ToolParser, ToolPiece};
use baton_openai::tools::Markup;
use baton_openai::{AnswerFormat, Tool, ToolChoice, ToolUse};
use baton_synthetic::SyntheticModel;
use serde_json::json;

use super::*;
use crate::tools;

fn tiny() -> Arc<Tokenizer> {
    let gguf = SyntheticModel::small("llama", Format::F32, 3).to_gguf().unwrap();
    Model::from_gguf(Gguf::from_bytes(gguf).unwrap()).unwrap().tokenizer().clone()
}

fn demo() -> Arc<Tokenizer> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo-cloud.gguf");
    Model::open(&path).unwrap().tokenizer().clone()
}

/// Returns logits that depend only on seed and position, like a model that might write anything.
fn logits(vocab_len: usize, seed: u64, index: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ index.wrapping_mul(0xd1b5_4a32_d192_ed03);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u32 << 24) as f32
    };
    (0..vocab_len).map(|_| next() * 8.0).collect()
}

/// Writes one answer; returns `None` if it did not end within `tokens_max`.
fn walk(tokenizer: &Tokenizer, mut constraint: Constraint, seed: u64, tokens_max: u64) -> Option<String> {
    let sampler =
        Sampler::new(SamplingParams { temperature: 1.0, seed, ..SamplingParams::default() }).unwrap();
    let mut bytes = Vec::new();
    for index in 0..tokens_max {
        let allowed = constraint.allowed().unwrap();
        let logits = logits(tokenizer.vocab_len(), seed, index);
        let id = sampler.sample_among(&logits, index, &[], &allowed).unwrap();
        if tokenizer.is_end(id) {
            return Some(String::from_utf8(bytes).unwrap());
        }
        assert!(!tokenizer.is_control(id), "a control token in an answer");
        bytes.extend_from_slice(tokenizer.token_bytes(id));
        if constraint.accept(id).unwrap() {
            return Some(String::from_utf8(bytes).unwrap());
        }
    }
    None
}

/// Returns whether a value matches a schema with the keywords that these tests use; written from the
/// specification.
fn follows(schema: &Value, value: &Value) -> bool {
    let number = |name: &str| schema.get(name).and_then(Value::as_f64);
    let length_within = |len: usize, min: &str, max: &str| {
        number(min).is_none_or(|min| len as f64 >= min) && number(max).is_none_or(|max| len as f64 <= max)
    };
    let of_kind = |kind: &str| match kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        _ => false,
    };
    let kinds = match schema.get("type") {
        None => true,
        Some(Value::Array(kinds)) => kinds.iter().any(|kind| of_kind(kind.as_str().unwrap())),
        Some(kind) => of_kind(kind.as_str().unwrap()),
    };
    let chosen = schema.get("enum").is_none_or(|values| values.as_array().unwrap().contains(value))
        && schema.get("const").is_none_or(|only| only == value)
        && schema
            .get("anyOf")
            .is_none_or(|any| any.as_array().unwrap().iter().any(|one| follows(one, value)));
    let text =
        value.as_str().is_none_or(|text| length_within(text.chars().count(), "minLength", "maxLength"));
    let size = value.as_f64().is_none_or(|value| {
        number("minimum").is_none_or(|min| value >= min) && number("maximum").is_none_or(|max| value <= max)
    });
    let items = value.as_array().is_none_or(|items| {
        length_within(items.len(), "minItems", "maxItems")
            && schema.get("items").is_none_or(|one| items.iter().all(|item| follows(one, item)))
    });
    let fields = value.as_object().is_none_or(|fields| {
        let known = schema.get("properties").and_then(Value::as_object);
        let required = schema.get("required").and_then(Value::as_array);
        let closed = schema.get("additionalProperties") == Some(&Value::Bool(false));
        required.is_none_or(|names| names.iter().all(|name| fields.contains_key(name.as_str().unwrap())))
            && fields.iter().all(|(name, value)| match known.and_then(|known| known.get(name)) {
                Some(schema) => follows(schema, value),
                None => !closed,
            })
    });
    kinds && chosen && text && size && items && fields
}

fn schemas() -> Vec<Value> {
    let person = json!({
        "type": "object",
        "properties": {
            "name": { "type": "string", "minLength": 1, "maxLength": 12 },
            "age": { "type": "integer", "minimum": 0, "maximum": 150 },
            "kind": { "enum": ["a", "b\"c", 3, null] },
            "tags": { "type": "array", "items": { "type": "string", "maxLength": 4 }, "minItems": 1, "maxItems": 3 },
            "home": { "type": ["object", "null"], "properties": { "at": { "type": "boolean" } }, "required": ["at"],
                      "additionalProperties": false }
        },
        "required": ["name", "age", "kind", "tags", "home"],
        "additionalProperties": false
    });
    vec![
        person,
        json!({ "type": "object", "properties": { "x": { "anyOf": [{ "const": "one" }, { "type": "boolean" }] },
            "y": { "type": "integer", "minimum": -5, "maximum": 7 } }, "required": ["x"], "additionalProperties": false }),
        json!({ "type": "array", "items": { "type": "boolean" }, "minItems": 2, "maxItems": 4 }),
        json!({ "enum": ["yes", "no", "naïve 😀"] }),
        json!({ "type": "string", "maxLength": 6 }),
    ]
}

#[test]
fn whatever_a_model_likes_follows_the_schema() {
    for tokenizer in [tiny(), demo()] {
        let grammars = Grammars::new(&tokenizer).unwrap();
        for schema in schemas() {
            for seed in 1..12 {
                let constraint = grammars.compile(&Grammar::Json(schema.clone()), None).unwrap();
                let text = walk(&tokenizer, constraint, seed, 2_000).expect("a bounded schema ends");
                let value: Value = serde_json::from_str(&text).unwrap_or_else(|err| panic!("{err}: {text}"));
                assert!(follows(&schema, &value), "{schema}: {text}");
                let again = grammars.compile(&Grammar::Json(schema.clone()), None).unwrap();
                assert_eq!(walk(&tokenizer, again, seed, 2_000).as_ref(), Some(&text), "the same again");
            }
        }
    }
}

#[test]
fn an_object_of_any_kind_begins_and_ends_as_one() {
    let tokenizer = demo();
    let grammars = Grammars::new(&tokenizer).unwrap();
    let whole = |seed| {
        let constraint = grammars.compile(&Grammar::Json(json!({ "type": "object" })), None).unwrap();
        walk(&tokenizer, constraint, seed, 400)
    };
    let ended: Vec<String> = (1..20).filter_map(whole).collect();
    assert!(!ended.is_empty(), "some of them end by themselves");
    for text in ended {
        assert!(serde_json::from_str::<Value>(&text).unwrap().is_object(), "{text}");
    }
}

#[test]
fn what_cannot_be_followed_is_refused_by_name() {
    let tokenizer = tiny();
    let grammars = Grammars::new(&tokenizer).unwrap();
    let refused = |schema: Value| match grammars.compile(&Grammar::Json(schema.clone()), None) {
        Ok(_) => panic!("{schema} was taken"),
        Err(err) => err.to_string(),
    };
    assert_eq!(refused(json!([1])), "the schema must be an object");
    assert!(refused(json!({ "type": "wizard" })).starts_with("the schema cannot be followed: "));
    assert!(refused(json!({ "$ref": "https://example.org/schema.json" })).contains("cannot be followed"));
    assert!(
        refused(json!({ "type": "string", "minLength": 5, "maxLength": 2 })).contains("cannot be followed")
    );
    assert!(refused(json!({ "enum": ["x".repeat(GRAMMAR_BYTES_MAX)] })).contains("the limit is 65536"));
    assert!(refused(json!({ "type": "string", "pattern": "(?=a)b" })).contains("cannot be followed"));
    let bad = grammars.compile(&Grammar::Lark("start: /[/".to_owned()), None).unwrap_err();
    assert!(bad.to_string().contains("cannot be followed"), "{bad}");
}

fn weather(strict: bool) -> Vec<Tool> {
    let city = json!({ "$ref": "#/$defs/city" });
    let parameters = json!({ "type": "object", "$defs": { "city": { "enum": ["Ulm", "Bern"] } },
        "properties": { "city": city }, "required": ["city"], "additionalProperties": false });
    let tool =
        |name: &str| Tool { name: name.into(), description: None, parameters: parameters.clone(), strict };
    vec![tool("weather"), tool("sun")]
}

/// Returns the calls in a text (names and arguments), and the rest of the text.
fn calls(markup: Markup, text: &str) -> (Vec<(String, String)>, String) {
    let mut parser = ToolParser::new(markup, ["weather".to_owned(), "sun".to_owned()]);
    let (mut calls, mut rest) = (Vec::<(String, String)>::new(), String::new());
    let pieces = text.chars().flat_map(|c| parser.push(&c.to_string())).collect::<Vec<_>>();
    for piece in pieces.into_iter().chain(parser.finish()) {
        match piece {
            ToolPiece::Text(text) => rest.push_str(&text),
            ToolPiece::Call { name, .. } => calls.push((name, String::new())),
            ToolPiece::Arguments { text, .. } => calls.last_mut().unwrap().1.push_str(&text),
        }
    }
    (calls, rest)
}

#[test]
fn a_demanded_call_is_a_valid_one() {
    let tokenizer = demo();
    let grammars = Grammars::new(&tokenizer).unwrap();
    for markup in [Markup::Tagged, Markup::Bare] {
        for (choice, parallel) in [
            (ToolChoice::Required, false),
            (ToolChoice::Required, true),
            (ToolChoice::Named("sun".into()), true),
        ] {
            let tools = ToolUse { tools: weather(false), choice: choice.clone(), parallel };
            let grammar = tools::grammar(markup, &tools, &AnswerFormat::Text).unwrap().unwrap();
            for seed in 1..8 {
                let text = walk(&tokenizer, grammars.compile(&grammar, None).unwrap(), seed, 2_000).unwrap();
                let (calls, rest) = calls(markup, &text);
                assert!(!calls.is_empty() && calls.len() <= if parallel { 8 } else { 1 }, "{text}");
                assert_eq!(rest, "", "{text}");
                for (name, arguments) in calls {
                    assert!(choice == ToolChoice::Required || name == "sun", "{text}");
                    let arguments: Value = serde_json::from_str(&arguments).unwrap();
                    assert!(
                        arguments == json!({ "city": "Ulm" }) || arguments == json!({ "city": "Bern" }),
                        "{text}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_strict_call_follows_its_schema_though_nobody_demands_it() {
    let tokenizer = tiny();
    let grammars = Grammars::new(&tokenizer).unwrap();
    let free = ToolUse { tools: weather(false), choice: ToolChoice::Auto, parallel: true };
    assert_eq!(tools::grammar(Markup::Tagged, &free, &AnswerFormat::Text).unwrap(), None);
    let strict = ToolUse { tools: weather(true), ..free };
    for (markup, lead, call, wrong) in [
        (
            Markup::Tagged,
            "Let me look.\n<tool_call>",
            "\n{\"name\": \"sun\", \"arguments\": {\"city\": \"Ulm\"}}\n</tool_call>",
            "\n{\"name\": \"rain",
        ),
        (Markup::Bare, "", "{\"name\": \"sun\", \"parameters\": {\"city\": \"Ulm\"}}", "{\"name\": \"rain"),
    ] {
        let grammar = tools::grammar(markup, &strict, &AnswerFormat::Text).unwrap().unwrap();
        let takes = |text: &str| {
            let mut constraint = grammars.compile(&grammar, None).unwrap();
            let ids = tokenizer.encode(text);
            let taken = ids.iter().take_while(|&&id| {
                constraint.allowed().unwrap().contains(id) && constraint.accept(id).is_ok()
            });
            (taken.count(), ids.len(), constraint)
        };
        let (taken, len, _) = takes(&format!("{lead}{call}"));
        assert_eq!(taken, len, "{markup:?} takes a right call");
        let (taken, len, _) = takes(&format!("{lead}{wrong}"));
        assert!(taken < len, "{markup:?} takes no wrong one");
        let (taken, len, mut constraint) = takes("No call at all.");
        assert_eq!(taken, len, "{markup:?} takes text");
        assert!(constraint.allowed().unwrap().contains(tokenizer.eos().unwrap()), "{markup:?} may end there");
    }
}

/// Feeds a text to a constraint, token by token; returns how much of it fits, in tokens, and of how many.
fn fed(tokenizer: &Tokenizer, constraint: &mut Constraint, text: &str) -> (usize, usize) {
    let ids = tokenizer.encode(text);
    let fits = ids
        .iter()
        .take_while(|&&id| constraint.allowed().unwrap().contains(id) && constraint.accept(id).is_ok())
        .count();
    (fits, ids.len())
}

#[test]
fn calls_or_a_format_may_come_if_both_are_asked_for() {
    let tokenizer = demo();
    let grammars = Grammars::new(&tokenizer).unwrap();
    let tools = ToolUse { tools: weather(false), choice: ToolChoice::Auto, parallel: true };
    let schema = json!({ "type": "object", "properties": { "name": { "enum": ["Saturn"] } },
        "required": ["name"], "additionalProperties": false });
    let format = AnswerFormat::JsonSchema(schema);
    for markup in [Markup::Tagged, Markup::Bare] {
        let grammar = tools::grammar(markup, &tools, &format).unwrap().unwrap();
        let field = markup.arguments_field();
        let call = format!("{{\"name\": \"sun\", \"{field}\": {{\"city\": \"Rome\"}}}}");
        let call = match markup {
            Markup::Tagged => format!("<tool_call>\n{call}\n</tool_call>"),
            Markup::Bare => call,
        };
        for (text, whole) in [(call.as_str(), true), ("{\"name\": \"Saturn\"}", true), ("Saturn", false)] {
            let mut constraint = grammars.compile(&grammar, None).unwrap();
            let (fits, all) = fed(&tokenizer, &mut constraint, text);
            assert_eq!(fits == all, whole, "{markup:?}: {text}: {fits} of {all}");
        }
        for seed in 1..6 {
            let Some(text) = walk(&tokenizer, grammars.compile(&grammar, None).unwrap(), seed, 2_000) else {
                continue;
            };
            let (found, rest) = calls(markup, &text);
            assert!(found.is_empty() != rest.is_empty(), "{text}");
        }
    }
}

#[test]
fn a_form_begins_behind_the_thought_that_the_prompt_has_opened() {
    let tokenizer = demo();
    let grammars = Grammars::new(&tokenizer).unwrap();
    let schema = json!({ "type": "object", "properties": { "name": { "enum": ["Saturn"] } },
        "required": ["name"], "additionalProperties": false });
    let grammar = Grammar::Json(schema);
    let json = "{\"name\": \"Saturn\"}";
    for text in [
        format!("Let {{me}} see.\n</think>\n\n{json}"),
        format!("</think>{json}"),
        format!("a < b, </thin\n</think>\n{json}"),
    ] {
        let mut constraint = grammars.compile(&grammar, Some(1_000)).unwrap();
        let (fits, all) = fed(&tokenizer, &mut constraint, &text);
        assert_eq!(fits, all, "{text}");
        assert!(constraint.allowed().unwrap().contains(tokenizer.eos().unwrap()), "{text}");
    }
    let mut open = grammars.compile(&grammar, Some(1_000)).unwrap();
    fed(&tokenizer, &mut open, "Let me see.");
    assert!(!open.allowed().unwrap().contains(tokenizer.eos().unwrap()), "it cannot end in its thought");
    let bodies = [(Some(0), "\n</think>\n\n".to_owned()), (Some(7), String::new())];
    for (tokens_max, begins) in bodies {
        for seed in 1..8 {
            let constraint = grammars.compile(&grammar, tokens_max).unwrap();
            let text = walk(&tokenizer, constraint, seed, 400).expect("a long thought is closed");
            assert!(text.starts_with(&begins) && text.ends_with(&format!("</think>\n\n{json}")), "{text}");
        }
    }
}

#[test]
fn a_thought_that_was_closed_is_open_again_if_its_tokens_are_taken_back() {
    let tokenizer = demo();
    let grammars = Grammars::new(&tokenizer).unwrap();
    let grammar = Grammar::Json(json!({ "enum": ["yes"] }));
    let mut constraint = grammars.compile(&grammar, Some(4)).unwrap();
    let ids = tokenizer.encode("one two three four five six seven");
    for &id in &ids[..4] {
        constraint.accept(id).unwrap();
    }
    let closing = |constraint: &mut Constraint| !constraint.allowed().unwrap().contains(ids[0]);
    assert!(closing(&mut constraint), "four tokens are thought");
    let (fits, all) = fed(&tokenizer, &mut constraint, "\n</th");
    assert_eq!(fits, all);
    constraint.take_back(all + 2).unwrap();
    assert!(!closing(&mut constraint), "two tokens are thought");
    constraint.accept(ids[2]).unwrap();
    constraint.accept(ids[3]).unwrap();
    assert!(closing(&mut constraint));
    let (fits, all) = fed(&tokenizer, &mut constraint, "\n</think>\n\n\"yes\"");
    assert_eq!(fits, all);
    constraint.take_back(3).unwrap();
    assert!(constraint.allowed().is_ok());
}
