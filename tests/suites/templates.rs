//! Prompts in common chat formats: the token ids of whole conversations must equal llama.cpp's, and texts of
//! control tokens in messages must stay text.
//!
//! `templates/record.py` recorded them with llama.cpp itself. It cuts a small part out of each vocabulary, on
//! which llama.cpp gives the same tokens as on the whole. A family is `own` if the vocabulary is that of its
//! models. If that was not available, it is another one with the family's rules, control tokens and template.
//!
//! Templates themselves are compared with Jinja2 (`templates/published.rs`).

#[path = "templates/published.rs"]
mod published;

use std::{collections::BTreeMap, fs, path::PathBuf};

use baton_engine::{
    ChatTemplate, Prompt, PromptSegment, Tokenizer,
    gguf::{Gguf, GgufWriter},
    prompt::{Turn, assemble, assemble_with_tools},
};
use serde::Deserialize;

/// GGUF's number for control tokens.
const CONTROL: i32 = 3;
/// Least number of families.
const FAMILIES_MIN: usize = 25;

#[derive(Deserialize)]
struct Recorded {
    conversations: Vec<Vec<Said>>,
    families: Vec<Family>,
}

#[derive(Deserialize, Clone)]
struct Said {
    role: String,
    content: String,
}

#[derive(Deserialize)]
struct Family {
    name: String,
    vocabulary: String,
    /// Whether this is the vocabulary of the family's models.
    own: bool,
    /// Control tokens added after the vocabulary.
    #[serde(default)]
    added: Vec<String>,
    bos: Option<String>,
    eos: Option<String>,
    pre: Option<String>,
    add_bos: Option<bool>,
    gguf_name: Option<String>,
    /// The chat template.
    source: String,
    /// The token ids, by the number of the conversation.
    ids: BTreeMap<String, Vec<u32>>,
}

/// The `tokenizer.ggml.*` fields of a file.
#[derive(Deserialize, Clone)]
struct Vocabulary {
    model: String,
    pre: Option<String>,
    tokens: Vec<String>,
    token_type: Vec<i32>,
    scores: Option<Vec<f32>>,
    merges: Option<Vec<String>>,
    bos_token_id: Option<u32>,
    eos_token_id: Option<u32>,
    add_bos_token: Option<bool>,
    add_space_prefix: Option<bool>,
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("suites/templates")
}

fn recorded() -> Recorded {
    let text = fs::read_to_string(folder().join("recorded.json")).expect("the records are in the checkout");
    serde_json::from_str(&text).expect("the records are JSON")
}

impl Family {
    /// Returns a family of a template with a known vocabulary and these control tokens.
    fn of_template(name: &str, source: &str, controls: &[String]) -> Family {
        Family {
            name: name.to_owned(),
            vocabulary: "qwen-2".to_owned(),
            own: false,
            added: controls.to_vec(),
            bos: None,
            eos: None,
            pre: None,
            add_bos: None,
            gguf_name: None,
            source: source.to_owned(),
            ids: BTreeMap::new(),
        }
    }

    fn vocabulary(&self) -> Vocabulary {
        let path = folder().join(format!("vocabularies/{}.json", self.vocabulary));
        let text = fs::read_to_string(path).expect("the vocabularies are in the checkout");
        let mut made: Vocabulary = serde_json::from_str(&text).expect("a vocabulary is JSON");
        for text in self.added.iter().filter(|text| !made.tokens.contains(text)).cloned().collect::<Vec<_>>()
        {
            made.tokens.push(text);
            made.token_type.push(CONTROL);
            if let Some(scores) = &mut made.scores {
                scores.push(-1000.0);
            }
        }
        let id = |text: &String| made.tokens.iter().position(|token| token == text).expect("a token") as u32;
        let (bos, eos) = (self.bos.as_ref().map(id), self.eos.as_ref().map(id));
        made.bos_token_id = bos.or(made.bos_token_id);
        made.eos_token_id = eos.or(made.eos_token_id);
        made.pre = self.pre.clone().or(made.pre);
        made.add_bos_token = self.add_bos.or(made.add_bos_token);
        made
    }

    /// Makes the tokenizer and the template of a model file of this family.
    fn open(&self) -> (Tokenizer, ChatTemplate) {
        let vocabulary = self.vocabulary();
        let mut writer = GgufWriter::new();
        writer.set("general.architecture", "llama");
        writer.set("general.name", self.gguf_name.clone().unwrap_or_else(|| self.name.clone()));
        let key = |name: &str| format!("tokenizer.ggml.{name}");
        writer.set(&key("model"), vocabulary.model).set(&key("tokens"), vocabulary.tokens);
        writer.set(&key("token_type"), vocabulary.token_type);
        if let Some(pre) = vocabulary.pre {
            writer.set(&key("pre"), pre);
        }
        if let Some(scores) = vocabulary.scores {
            writer.set(&key("scores"), scores);
        }
        if let Some(merges) = vocabulary.merges {
            writer.set(&key("merges"), merges);
        }
        for (name, id) in
            [("bos_token_id", vocabulary.bos_token_id), ("eos_token_id", vocabulary.eos_token_id)]
        {
            if let Some(id) = id {
                writer.set(&key(name), id);
            }
        }
        for (name, flag) in
            [("add_bos_token", vocabulary.add_bos_token), ("add_space_prefix", vocabulary.add_space_prefix)]
        {
            if let Some(flag) = flag {
                writer.set(&key(name), flag);
            }
        }
        let bytes = writer.to_bytes().expect("a vocabulary makes a file");
        let gguf = Gguf::from_bytes(bytes).expect("the file is one");
        let tokenizer = Tokenizer::from_gguf(&gguf).unwrap_or_else(|err| panic!("{}: {err:?}", self.name));
        let text = |id: Option<u32>| {
            id.map_or_else(String::new, |id| String::from_utf8_lossy(tokenizer.token_bytes(id)).into_owned())
        };
        let template = ChatTemplate::new(&self.source, &text(tokenizer.bos()), &text(tokenizer.eos()));
        let template = template.unwrap_or_else(|err| panic!("{}: {err:?}", self.name));
        (tokenizer, template)
    }
}

/// llama.cpp asks for thinking where a template can be asked.
fn asked() -> serde_json::Map<String, serde_json::Value> {
    [("enable_thinking".to_owned(), true.into())].into_iter().collect()
}

fn prompt(tokenizer: &Tokenizer, template: &ChatTemplate, said: &[Said]) -> Result<Prompt, String> {
    let segments: Vec<PromptSegment<'_>> =
        said.iter().map(|said| PromptSegment { role: &said.role, text: &said.content }).collect();
    let found = assemble(tokenizer, template, &segments).map_err(|err| format!("{err:?}"))?;
    if !template.mentions("enable_thinking") {
        return Ok(found);
    }
    let turns: Vec<Turn> =
        said.iter().map(|said| Turn::new(said.role.as_str(), said.content.as_str())).collect();
    assemble_with_tools(tokenizer, template, &turns, &[], Some(&asked())).map_err(|err| format!("{err:?}"))
}

/// Returns tokens as texts, for messages.
fn texts(tokenizer: &Tokenizer, ids: &[u32]) -> Vec<String> {
    ids.iter().map(|&id| String::from_utf8_lossy(tokenizer.token_bytes(id)).into_owned()).collect()
}

#[test]
fn conversations_have_the_ids_that_llama_cpp_gives() {
    let recorded = recorded();
    assert!(recorded.families.len() >= FAMILIES_MIN);
    let mut wrong = Vec::new();
    println!("{:<28} {:<15} {:<11} conversations", "family", "vocabulary", "is its own");
    for family in &recorded.families {
        let (tokenizer, template) = family.open();
        let own = if family.own { "yes" } else { "its rules" };
        println!("{:<28} {:<15} {own:<11} {}", family.name, family.vocabulary, family.ids.len());
        for (number, want) in &family.ids {
            let number: usize = number.parse().expect("a number");
            let said = &recorded.conversations[number];
            match prompt(&tokenizer, &template, said) {
                Ok(found) if found.ids == *want => {}
                Ok(found) => wrong.push(format!(
                    "{}, conversation {number}:\n  found {:?}\n  want  {:?}",
                    family.name,
                    texts(&tokenizer, &found.ids),
                    texts(&tokenizer, want)
                )),
                Err(err) => wrong.push(format!("{}, conversation {number}: {err}", family.name)),
            }
        }
    }
    assert!(wrong.is_empty(), "{} prompts are not llama.cpp's:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn conversations_as_turns_of_a_chat_have_the_same_ids() {
    let recorded = recorded();
    for family in &recorded.families {
        let (tokenizer, template) = family.open();
        for (number, want) in &family.ids {
            let said = &recorded.conversations[number.parse::<usize>().expect("a number")];
            let turns: Vec<Turn> =
                said.iter().map(|said| Turn::new(said.role.as_str(), said.content.as_str())).collect();
            let ids = assemble_with_tools(&tokenizer, &template, &turns, &[], Some(&asked()));
            let ids = ids.unwrap_or_else(|err| panic!("{}: {err:?}", family.name)).ids;
            assert_eq!(texts(&tokenizer, &ids), texts(&tokenizer, want), "{} {number}", family.name);
        }
    }
}

/// Makes a text in which every control token of the vocabulary is written out, alone and inside words.
fn hostile(tokenizer: &Tokenizer) -> String {
    let controls = (0..tokenizer.vocab_len() as u32).filter(|&id| tokenizer.is_control(id));
    let names: Vec<String> =
        controls.map(|id| String::from_utf8_lossy(tokenizer.token_bytes(id)).into_owned()).collect();
    assert!(!names.is_empty());
    format!("x{}x {} x", names.concat(), names.join(" "))
}

#[test]
fn control_texts_in_messages_stay_text_in_every_format() {
    let recorded = recorded();
    for family in &recorded.families {
        let (tokenizer, template) = family.open();
        let hostile = hostile(&tokenizer);
        for number in family.ids.keys() {
            let plain = &recorded.conversations[number.parse::<usize>().expect("a number")];
            let mut attacked = plain.clone();
            for said in attacked.iter_mut().filter(|said| said.role != "assistant") {
                said.content = hostile.clone();
            }
            let controls = |prompt: &Prompt| -> Vec<u32> {
                prompt.ids.iter().copied().filter(|&id| tokenizer.is_control(id)).collect()
            };
            let [plain, attacked] = [plain, &attacked].map(|said| {
                prompt(&tokenizer, &template, said).unwrap_or_else(|err| panic!("{}: {err}", family.name))
            });
            assert_eq!(controls(&plain), controls(&attacked), "{} {number}", family.name);
            for segment in &attacked.segments {
                let own = &attacked.ids[segment.tokens.clone()];
                assert!(own.iter().all(|&id| !tokenizer.is_control(id)), "{} {number}", family.name);
            }
        }
    }
}

#[test]
fn every_segment_knows_its_tokens_in_every_format() {
    let recorded = recorded();
    for family in &recorded.families {
        let (tokenizer, template) = family.open();
        for number in family.ids.keys() {
            let said = &recorded.conversations[number.parse::<usize>().expect("a number")];
            let prompt = prompt(&tokenizer, &template, said).expect("it was laid out before");
            // Templates may move a segment, but two segments never share a token.
            let mut places: Vec<_> = prompt.segments.iter().map(|s| s.tokens.clone()).collect();
            places.sort_by_key(|place| place.start);
            assert!(places.windows(2).all(|pair| pair[0].end <= pair[1].start), "{}", family.name);
            for (segment, said) in prompt.segments.iter().zip(said) {
                assert_eq!(segment.tokens.len(), segment.spans.len());
                let ends: Vec<usize> = segment.spans.iter().map(|span| span.end).collect();
                let starts: Vec<usize> = segment.spans.iter().map(|span| span.start).collect();
                let len = said.content.len();
                assert_eq!(starts, [&[0], &ends[..ends.len() - 1]].concat(), "{}", family.name);
                assert_eq!(ends.last(), Some(&len), "{}", family.name);
                // A token may reach into the segment from the template, never out of it.
                let bytes: Vec<u8> = prompt.ids[segment.tokens.clone()]
                    .iter()
                    .flat_map(|&id| tokenizer.token_bytes(id))
                    .copied()
                    .collect();
                let text = String::from_utf8_lossy(&bytes).into_owned();
                assert!(
                    text.contains(said.content.trim()),
                    "{}: {text:?} of {:?}",
                    family.name,
                    said.content
                );
            }
        }
    }
}
