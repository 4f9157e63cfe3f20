//! Vocabularies of every kind: the file's tokenizer gives the same ids as the folder's.

use baton_engine::Tokenizer;
use baton_engine::tokenizer::JsonOptions;
use baton_import::Quantization;
use serde_json::{Value, json};

use crate::folder::{Folder, byte_level_json};

const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const DEEPSEEK3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;

/// Imports with a `tokenizer.json` and compares the ids of more texts.
#[track_caller]
fn check(tokenizer: Value, model: &str, pre: &str) -> Folder {
    let mut folder = Folder::new("LlamaForCausalLM");
    folder.tokenizer = tokenizer;
    if model == "llama" {
        folder.config["bos_token_id"] = 1.into();
        folder.config["eos_token_id"] = 2.into();
    }
    folder.write();
    let summary = folder.import(Quantization::F32).unwrap();
    assert_eq!(summary.tokenizer, (model, pre));
    let original = Tokenizer::from_json(folder.path("tokenizer.json"), JsonOptions::default()).unwrap();
    let made = folder.model();
    for text in ["the whole world 12345", "he  he\n\nwhw", "Ünï 99%", "<|bos|> hello"] {
        assert_eq!(made.tokenizer().encode(text), original.encode(text), "{text}");
    }
    folder
}

fn split(pattern: &str, ignore_merges: bool) -> Value {
    let mut json = byte_level_json();
    json["pre_tokenizer"] = json!({"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false},
        {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}]});
    json["model"]["ignore_merges"] = ignore_merges.into();
    json
}

#[test]
fn byte_level_pre_tokenizers_are_found_by_their_patterns() {
    check(byte_level_json(), "gpt2", "gpt-2");
    check(split(LLAMA3, true), "gpt2", "llama-bpe");
    check(split(LLAMA3, false), "gpt2", "dbrx");
    check(split(QWEN2, false), "gpt2", "qwen2");
    let mut digits = byte_level_json();
    digits["pre_tokenizer"] = json!({"type": "Sequence", "pretokenizers": [
        {"type": "Digits", "individual_digits": true}, digits["pre_tokenizer"]]});
    check(digits, "gpt2", "starcoder");
    check(split(TEKKEN, true), "gpt2", "tekken");
    // The pattern holds literal line ends, and the normalizer does nothing.
    let mut deepseek = byte_level_json();
    let cut = |pattern: &str| json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
    deepseek["pre_tokenizer"] = json!({"type": "Sequence", "pretokenizers": [
        cut(r"\p{N}{1,3}"), cut("[一-龥぀-ゟ゠-ヿ]+"), cut(&DEEPSEEK3.replace(r"\r", "\r").replace(r"\n", "\n")),
        {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}]});
    deepseek["normalizer"] = json!({"type": "Sequence", "normalizers": []});
    check(deepseek, "gpt2", "deepseek-v3");
}

#[test]
fn merges_of_the_older_form_and_a_begin_token() {
    let mut json = split(LLAMA3, true);
    json["model"]["merges"] = json!(["h e", "Ġ w"]);
    json["post_processor"] = json!({"type": "Sequence", "processors": [
        {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false, "use_regex": true},
        {"type": "TemplateProcessing", "pair": [],
         "single": [{"SpecialToken": {"id": "<|bos|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
         "special_tokens": {"<|bos|>": {"id": "<|bos|>", "ids": [258], "tokens": ["<|bos|>"]}}}]});
    let folder = check(json, "gpt2", "llama-bpe");
    let model = folder.model();
    assert!(model.tokenizer().adds_bos());
    assert_eq!(model.tokenizer().bos(), Some(258));
    assert!(model.tokenizer().is_end(259));
}

/// Returns a `tokenizer.json` like that of Llama 2: pieces, merges by rank, and byte tokens for the rest.
fn sentencepiece_json(prefix: bool) -> Value {
    let mut vocab = serde_json::Map::new();
    for text in ["<unk>", "<s>", "</s>"] {
        vocab.insert(text.to_owned(), vocab.len().into());
    }
    for byte in 0..=255u8 {
        vocab.insert(format!("<0x{byte:02X}>"), vocab.len().into());
    }
    for text in ["▁", "h", "e", "w", "o", "▁w", "he", "▁he", "wo", "▁wo", "▁▁"] {
        vocab.insert(text.to_owned(), vocab.len().into());
    }
    let special = |id: u32, text: &str| {
        json!({"id": id, "content": text, "special": true, "normalized": false,
            "single_word": false, "lstrip": false, "rstrip": false})
    };
    let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
    let prepend = json!({"type": "Prepend", "prepend": "▁"});
    let normalizers = if prefix { json!([prepend, replace]) } else { json!([replace]) };
    json!({
        "version": "1.0", "truncation": null, "padding": null, "pre_tokenizer": null, "post_processor": null,
        "added_tokens": [special(0, "<unk>"), special(1, "<s>"), special(2, "</s>")],
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
            {"type": "Fuse"}]},
        "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
            "vocab": vocab,
            "merges": ["h e", "▁ w", "▁w o", "▁ he", "w o", "▁ wo", "▁ ▁"]},
    })
}

#[test]
fn sentencepiece_of_a_tokenizer_json() {
    for prefix in [true, false] {
        let folder = check(sentencepiece_json(prefix), "llama", "default");
        let ids = folder.model().tokenizer().encode("he wo");
        let texts: Vec<u32> = if prefix { vec![266, 268] } else { vec![265, 268] };
        assert_eq!(ids, texts, "prefix {prefix}");
    }
}

#[test]
fn tokens_that_swallow_white_space_do_so_in_the_file() {
    let mut json = byte_level_json();
    let token = json!({"id": 260, "content": "three", "special": false, "normalized": false,
        "single_word": false, "lstrip": true, "rstrip": true});
    json["added_tokens"].as_array_mut().unwrap().push(token);
    let folder = check(json, "gpt2", "gpt-2");
    let tokenizer = folder.model().tokenizer().clone();
    assert_eq!(
        tokenizer.encode("a \n three\t\n b"),
        [tokenizer.encode("a"), vec![260], tokenizer.encode("b")].concat()
    );
}

#[test]
fn a_file_that_cuts_text_otherwise_is_refused() {
    // The library finds this token only as a whole word, which the file's keys cannot express.
    let mut json = byte_level_json();
    let token = json!({"id": 260, "content": "thr", "special": false, "normalized": false,
        "single_word": true, "lstrip": false, "rstrip": false});
    json["added_tokens"].as_array_mut().unwrap().push(token);
    let mut folder = Folder::new("LlamaForCausalLM");
    folder.tokenizer = json;
    let text = folder.refused();
    assert!(text.starts_with("tokenizer of the file differs from tokenizer.json: "), "{text}");
}
