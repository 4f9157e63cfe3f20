//! Tokenizers of small vocabularies, and control tokens in user text.

use proptest::prelude::*;

use super::bytes::byte_to_char;
use super::*;
use crate::gguf::GgufWriter;

const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const BYTE: i32 = 6;

/// Returns a byte-level vocabulary: 256 bytes, some merges, control tokens, one user-defined token.
pub(crate) fn byte_level_gguf(pre: &str) -> GgufWriter<'static> {
    let mut tokens: Vec<String> = (0..=255).map(|b| byte_to_char(b).to_string()).collect();
    let mut merges = Vec::new();
    for (left, right) in
        [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "w"), ("Ã", "©"), ("Ġ", "hello")]
    {
        merges.push(format!("{left} {right}"));
        tokens.push(format!("{left}{right}"));
    }
    let mut types = vec![NORMAL; tokens.len()];
    for text in ["<|bos|>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>", "END"] {
        tokens.push(text.to_owned());
        types.push(CONTROL);
    }
    tokens.extend(["<think>".to_owned(), "<|tool|>".to_owned()]);
    types.extend([USER_DEFINED; 2]);
    let id = |text: &str| tokens.iter().position(|t| t == text).unwrap() as u32;
    let (bos, eos) = (id("<|bos|>"), id("<|end|>"));
    let mut w = GgufWriter::new();
    w.set("tokenizer.ggml.model", "gpt2").set("tokenizer.ggml.pre", pre);
    w.set("tokenizer.ggml.bos_token_id", bos).set("tokenizer.ggml.eos_token_id", eos);
    w.set("tokenizer.ggml.tokens", tokens).set("tokenizer.ggml.token_type", types);
    w.set("tokenizer.ggml.merges", merges);
    w
}

/// Returns a scored vocabulary with ties and several splits, byte tokens, and `[INST]` as control token.
pub(crate) fn scored_gguf() -> GgufWriter<'static> {
    let mut pieces: Vec<(String, f32, i32)> =
        vec![("<unk>".into(), 0.0, UNKNOWN), ("<s>".into(), 0.0, CONTROL), ("</s>".into(), 0.0, CONTROL)];
    pieces.extend((0..=255).map(|b| (format!("<0x{b:02X}>"), 0.0, BYTE)));
    pieces.push(("[INST]".into(), 0.0, CONTROL));
    let scored = [
        ("▁t", -1.0),
        ("he", -2.0),
        ("▁the", -3.0),
        ("aa", -4.0),
        ("aaa", -4.0),
        ("▁▁", -5.0),
        ("</", -0.5),
        ("s>", -0.6),
    ];
    pieces.extend(scored.map(|(t, s)| (t.to_owned(), s, NORMAL)));
    pieces.extend("▁theas</>b".chars().enumerate().map(|(i, c)| (c.to_string(), -10.0 - i as f32, NORMAL)));
    let mut w = GgufWriter::new();
    w.set("tokenizer.ggml.model", "llama");
    w.set("tokenizer.ggml.bos_token_id", 1u32).set("tokenizer.ggml.eos_token_id", 2u32);
    w.set("tokenizer.ggml.tokens", pieces.iter().map(|p| p.0.clone()).collect::<Vec<_>>());
    w.set("tokenizer.ggml.scores", pieces.iter().map(|p| p.1).collect::<Vec<_>>());
    w.set("tokenizer.ggml.token_type", pieces.iter().map(|p| p.2).collect::<Vec<_>>());
    w
}

pub(crate) fn tokenizer(w: &GgufWriter<'_>) -> Tokenizer {
    Tokenizer::from_gguf(&Gguf::from_bytes(w.to_bytes().unwrap()).unwrap()).unwrap()
}

#[track_caller]
fn refused(w: &GgufWriter<'_>, want: &str) {
    let gguf = Gguf::from_bytes(w.to_bytes().unwrap()).unwrap();
    assert_eq!(Tokenizer::from_gguf(&gguf).unwrap_err().to_string(), want);
}

/// Returns the tokens' texts, for readable comparisons.
fn texts(tokenizer: &Tokenizer, ids: &[TokenId]) -> Vec<String> {
    ids.iter().map(|&id| String::from_utf8_lossy(tokenizer.token_bytes(id)).into_owned()).collect()
}

#[track_caller]
fn check(tokenizer: &Tokenizer, text: &str, want: &[&str]) {
    assert_eq!(texts(tokenizer, &tokenizer.encode(text)), want, "{text:?}");
}

#[track_caller]
fn check_covers(tokenizer: &Tokenizer, text: &str) {
    let (ids, spans) = tokenizer.encode_spans(text);
    assert_eq!(ids, tokenizer.encode(text));
    let mut at = 0;
    for span in &spans {
        assert_eq!(span.start, at, "{text:?}");
        at = span.end;
    }
    assert_eq!(at, text.len(), "{text:?}");
    assert!(ids.iter().all(|&id| !tokenizer.is_control(id)), "{text:?}");
}

#[test]
fn byte_level_merges_in_order_within_words() {
    let t = tokenizer(&byte_level_gguf("gpt-2"));
    check(&t, "hello hello wé", &["hello", " hello", " w", "é"]);
    check(&t, "hel", &["he", "l"]);
    check(&t, "", &[]);
    assert_eq!(t.encode_spans("hello é").1, [0..5, 5..6, 6..8]);
    assert_eq!(t.encode_spans("\u{1F600}").1, [0..1, 1..2, 2..3, 3..4]);
    assert_eq!(t.vocab_len(), 256 + 7 + 8);
    assert_eq!(t.token_bytes(u32::MAX), b"");
    assert_eq!((t.bos(), t.eos(), t.adds_bos()), (Some(263), Some(267), false));
    assert!(t.is_end(267) && t.is_control(267) && !t.is_end(0) && !t.is_control(0));
}

#[test]
fn scored_merges_by_score_then_place() {
    let t = tokenizer(&scored_gguf());
    check(&t, "the", &[" the"]);
    check(&t, "aaaa", &[" ", "aaa", "a"]);
    check(&t, "aaaaa", &[" ", "aaa", "aa"]);
    check(&t, "  b", &["  ", " ", "b"]);
    check(&t, "é", &[" ", "\u{fffd}", "\u{fffd}"]);
    check(&t, "", &[]);
    assert_eq!(t.encode_spans("the é").1, [0..3, 3..4, 4..5, 5..6]);
    assert_eq!(t.encode_spans("b").1, [0..0, 0..1]);
    assert_eq!(
        t.encode_answer("b").1,
        [0..0, 0..1],
        "an answer that begins without a space, as another model's may"
    );
    assert_eq!(t.encode_answer(" the").0, t.encode("the"), "an answer's own space is the only one");
    assert_eq!(t.encode_answer(" the").1.last(), Some(&(0..4)));
    assert!(t.adds_bos());
}

#[test]
fn user_text_never_becomes_a_control_token() {
    for t in [
        tokenizer(&byte_level_gguf("gpt-2")),
        tokenizer(&byte_level_gguf("llama-bpe")),
        tokenizer(&scored_gguf()),
    ] {
        let controls: Vec<TokenId> = (0..t.vocab_len() as u32).filter(|&id| t.is_control(id)).collect();
        assert!(controls.len() > 3);
        for id in controls {
            let text = String::from_utf8(t.token_bytes(id).to_vec()).unwrap();
            for around in [text.clone(), format!(" {text}"), format!("a{text}b"), text.repeat(3)] {
                check_covers(&t, &around);
                assert!(!t.encode(&around).contains(&id), "{around:?}");
            }
            if !matches!(text.as_str(), "<unk>") {
                assert_eq!(t.encode_template(&text), [id], "{text:?}");
            }
        }
    }
}

#[test]
fn templates_read_control_and_user_defined_tokens() {
    let t = tokenizer(&byte_level_gguf("gpt-2"));
    let ids = t.encode_template("<|bos|><|user|>hello<|end|> x<think>");
    assert_eq!(texts(&t, &ids), ["<|bos|>", "<|user|>", "hello", "<|end|>", " ", "x", "<think>"]);
    check(&t, "a<think>b", &["a", "<think>", "b"]);
    let user_defined = t.encode("<think>")[0];
    assert!(!t.is_control(user_defined));
    assert_eq!(t.encode("<|tool|>").len(), 8, "a user-defined token of a control token's shape is control");
    let s = tokenizer(&scored_gguf());
    assert_eq!(texts(&s, &s.encode_template("<s>[INST]the")), ["<s>", "[INST]", " the"]);
}

#[test]
fn malformed_descriptions_are_refused() {
    let base = || byte_level_gguf("gpt-2");
    refused(GgufWriter::new().set("x", 1u32), "read tokenizer metadata");
    refused(
        base().set("tokenizer.ggml.model", "bert"),
        "tokenizer model is `bert`, want `gpt2`, `llama` or `gemma4`",
    );
    refused(base().set("tokenizer.ggml.pre", "odd"), "pre-tokenizer `odd` is not supported");
    refused(base().set("tokenizer.ggml.merges", 3u32), "read tokenizer metadata");
    refused(
        base().set("tokenizer.ggml.token_type", vec![1i32]),
        "`tokenizer.ggml.token_type` has 1 entries, the vocabulary has 271",
    );
    refused(base().set("tokenizer.ggml.token_type", vec![9i32; 271]), "token 0 has type 9, want 0 to 6");
    refused(
        base().set("tokenizer.ggml.eos_token_id", 271u32),
        "`tokenizer.ggml.eos_token_id` is 271, the vocabulary has 271 tokens",
    );
    refused(base().set("tokenizer.ggml.eos_token_id", -1i32), "read tokenizer metadata");
    refused(
        base().set("tokenizer.ggml.merges", vec!["he", "l l"]),
        "merge 0 is `he`, which the vocabulary cannot make",
    );
    refused(
        base().set("tokenizer.ggml.merges", vec!["l l", "q q"]),
        "merge 1 is `q q`, which the vocabulary cannot make",
    );
    let empty = Vec::<String>::new;
    let no_types = Vec::<i32>::new();
    let mut w = GgufWriter::new();
    w.set("tokenizer.ggml.model", "gpt2")
        .set("tokenizer.ggml.tokens", empty())
        .set("tokenizer.ggml.merges", empty());
    refused(w.set("tokenizer.ggml.token_type", no_types), "vocabulary has 0 tokens, want 1 to 2147483647");
    let scored = scored_gguf;
    refused(
        scored().set("tokenizer.ggml.scores", vec![0.5f32]),
        "`tokenizer.ggml.scores` has 1 entries, the vocabulary has 278",
    );
    refused(scored().set("tokenizer.ggml.scores", vec![f32::NAN; 278]), "score of token 0 is not a number");
    let mut w = GgufWriter::new();
    w.set("tokenizer.ggml.model", "llama")
        .set("tokenizer.ggml.tokens", vec!["a"])
        .set("tokenizer.ggml.scores", vec![0f32]);
    refused(&w, "vocabulary has no token for byte 0x00");
}

#[test]
fn a_byte_without_a_token_costs_that_byte() {
    let mut w = byte_level_gguf("gpt-2");
    let gguf = Gguf::from_bytes(w.to_bytes().unwrap()).unwrap();
    let mut tokens: Vec<String> =
        gguf.metadata().str_array("tokenizer.ggml.tokens").unwrap().into_iter().map(str::to_owned).collect();
    for byte in [0x04, b'z', 0xf1] {
        tokens[usize::from(byte)] = format!("gone{byte}");
    }
    let t = tokenizer(w.set("tokenizer.ggml.tokens", tokens));
    // Nothing merges across the gap. Its bytes belong to the next token, or to the last one at the end of a
    // text.
    for (text, want, ends) in [
        ("hello\u{4}", &["hello"][..], &[6][..]),
        ("he\u{4}llo z hello", &["he", "ll", "o", " ", " hello"], &[2, 5, 6, 7, 14]),
        ("z\u{4}zhe", &["he"], &[5]),
        ("\u{4}z", &[], &[]),
        ("\u{46000}", &["\u{fffd}"; 3], &[2, 3, 4]),
    ] {
        check(&t, text, want);
        let found: Vec<usize> = t.encode_spans(text).1.iter().map(|span| span.end).collect();
        assert_eq!(found, ends, "{text:?}");
    }
    w.set("tokenizer.ggml.tokens", vec!["b"]).set("tokenizer.ggml.token_type", vec![1i32]);
    w.set("tokenizer.ggml.merges", Vec::<String>::new());
    w.set("tokenizer.ggml.bos_token_id", 0u32).set("tokenizer.ggml.eos_token_id", 0u32);
    check(&tokenizer(&w), "any text", &[]);
}

#[test]
fn merges_of_control_tokens_are_left_out() {
    let mut w = byte_level_gguf("gpt-2");
    w.set("tokenizer.ggml.merges", vec!["E N", "EN D"]);
    refused(&w, "merge 0 is `E N`, which the vocabulary cannot make");
    let t = tokenizer(w.set("tokenizer.ggml.merges", vec!["END h", "h e"].split_off(1)));
    check(&t, "END", &["E", "N", "D"]);
}

#[test]
fn the_digest_tells_tokenizers_apart() {
    let a = tokenizer(&byte_level_gguf("gpt-2"));
    let again = tokenizer(&byte_level_gguf("gpt-2"));
    assert_eq!(a.digest(), again.digest());
    assert_eq!(a.digest_hex().len(), 64);
    assert!(a.digest_hex().starts_with(&format!("{:02x}", a.digest()[0])));
    let others = [
        tokenizer(&byte_level_gguf("qwen2")),
        tokenizer(byte_level_gguf("gpt-2").set("tokenizer.ggml.merges", vec!["h e"])),
        tokenizer(&scored_gguf()),
        tokenizer(scored_gguf().set("tokenizer.ggml.add_space_prefix", false)),
    ];
    let mut digests: Vec<String> = others.iter().map(|t| t.digest_hex().to_owned()).collect();
    digests.push(a.digest_hex().to_owned());
    digests.sort();
    digests.dedup();
    assert_eq!(digests.len(), 5);
}

/// Returns a small tokenizer.json: byte-level BPE with a control token and an added token of that shape.
fn json_tokenizer() -> Tokenizer {
    let mut vocab: serde_json::Map<String, serde_json::Value> =
        (0..=255u8).map(|b| (byte_to_char(b).to_string(), b.into())).collect();
    for (i, text) in ["he", "ll", "hell"].iter().enumerate() {
        vocab.insert((*text).to_owned(), (256 + i).into());
    }
    let added = |id: u32, content: &str, special: bool| {
        serde_json::json!({"id": id, "content": content, "special": special, "single_word": false,
            "lstrip": false, "rstrip": false, "normalized": false})
    };
    let json = serde_json::json!({
        "version": "1.0",
        "added_tokens": [added(259, "<|end|>", true), added(260, "<|odd|>", false), added(261, "<think>", false)],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "vocab": vocab, "merges": ["h e", "l l", "he ll"]},
    });
    let options = JsonOptions { bos: None, eos: Some("<|end|>"), adds_bos: true };
    Tokenizer::from_json_bytes(json.to_string().as_bytes(), options).unwrap()
}

#[test]
fn a_tokenizer_json_encodes_like_the_rest() {
    let t = json_tokenizer();
    check(&t, "hello é<think>", &["hell", "o", " ", "\u{fffd}", "\u{fffd}", "<think>"]);
    check_covers(&t, "hello é 😀 x<|end|><|odd|>");
    assert_eq!(
        t.encode_template("<|end|>x<|odd|>"),
        [259, u32::from(b'x') - 33, 260].map(|id| if id == 87 { t.encode("x")[0] } else { id })
    );
    assert!(t.is_end(259) && t.is_control(260) && !t.is_control(261));
    assert_eq!((t.eos(), t.adds_bos(), t.vocab_len()), (Some(259), false, 262));
    let dir = tempfile::tempdir().unwrap();
    let missing = Tokenizer::from_json(dir.path().join("tokenizer.json"), JsonOptions::default());
    assert!(matches!(missing, Err(TokenizerError::Open { .. })));
}

#[test]
fn a_tokenizer_json_with_dropout_encodes_without() {
    let json = br#"{"model":{"type":"BPE","dropout":0.9,"vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]}}"#;
    let t = Tokenizer::from_json_bytes(json, JsonOptions::default()).unwrap();
    assert_eq!(t.encode(&"ab".repeat(50)), [2; 50]);
}

#[test]
fn malformed_tokenizer_json_is_refused() {
    for bad in ["", "{", "[]", "{}", r#"{"model":{"type":"BPE"}}"#, r#"{"model":3}"#] {
        assert!(Tokenizer::from_json_bytes(bad.as_bytes(), JsonOptions::default()).is_err(), "{bad}");
    }
    let piece = br#"{"model":{"type":"WordPiece","vocab":{"a":0}}}"#;
    let err = Tokenizer::from_json_bytes(piece, JsonOptions::default()).unwrap_err().to_string();
    assert_eq!(err, "tokenizer model is `WordPiece`, want `gpt2`, `llama` or `gemma4`");
    // The library cuts the prefix off each merge's right side, which is shorter here, and panics.
    let panics = br#"{"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":["a b"],
        "continuing_subword_prefix":"@@@@"}}"#;
    assert!(Tokenizer::from_json_bytes(panics, JsonOptions::default()).is_err());
    let far = br#"{"model":{"type":"BPE","vocab":{"a":4000000000},"merges":[]}}"#;
    let err = Tokenizer::from_json_bytes(far, JsonOptions::default()).unwrap_err().to_string();
    assert_eq!(err, "vocabulary has 4000000001 tokens, want 1 to 65538");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_text_is_covered_and_comes_back(text in "(\\PC|[ \\n\\t]|hello|<\\|end\\|>|</s>|END|é){0,40}") {
        for t in [tokenizer(&byte_level_gguf("gpt-2")), tokenizer(&byte_level_gguf("llama-bpe"))] {
            check_covers(&t, &text);
            let bytes: Vec<u8> = t.encode(&text).iter().flat_map(|&id| t.token_bytes(id).to_vec()).collect();
            prop_assert_eq!(&bytes, text.as_bytes());
        }
        let t = tokenizer(&scored_gguf());
        check_covers(&t, &text);
        let bytes: Vec<u8> = t.encode(&text).iter().flat_map(|&id| t.token_bytes(id).to_vec()).collect();
        let want = text.replace('▁', " ");
        prop_assert_eq!(bytes, if text.is_empty() { vec![] } else { format!(" {want}").into_bytes() });
        check_covers(&json_tokenizer(), &text);
    }
}

/// Returns texts with words longer than a block, or with blocks that could be cut at a wrong position.
fn long_texts() -> Vec<String> {
    let mut letters = 1_u32;
    let mut letter = || {
        letters = letters.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        char::from(b'a' + (letters >> 24) as u8 % 26)
    };
    vec![
        "harbour".repeat(9_000),
        "a".repeat(70_001),
        "he".repeat(40_000),
        " ".repeat(60_000),
        "\n\n \t".repeat(20_000),
        "港口保存着".repeat(9_000),
        "é😀ab".repeat(9_000),
        "the hello ".repeat(9_000),
        (0..60_000).map(|_| letter()).collect(),
    ]
}

#[test]
fn long_words_become_the_same_tokens_in_blocks() {
    let path = format!("{}/../../models/demo-cloud.gguf", env!("CARGO_MANIFEST_DIR"));
    let demo = Tokenizer::from_gguf(&crate::gguf::Gguf::open(path).unwrap()).unwrap();
    for t in [tokenizer(&byte_level_gguf("gpt-2")), tokenizer(&scored_gguf()), demo] {
        for text in long_texts() {
            let encode = |block: usize| {
                let mut tokens = Vec::new();
                let mut token = |id, len| tokens.push((id, len));
                match &t.encoder {
                    Encoder::ByteLevel(encoder) => encoder.encode_in(block, &text, &mut token),
                    Encoder::Scored(encoder) => encoder.encode_in(block, &text, true, &mut token),
                    Encoder::Chars(encoder) => encoder.encode_in(block, &text, &mut token),
                    Encoder::Json(_) => unreachable!("none of these is a tokenizer.json"),
                }
                tokens
            };
            let whole = encode(usize::MAX);
            for block in [1_000, 16 << 10] {
                assert!(encode(block) == whole, "{:?}… in blocks of {block}", &text[..8]);
            }
        }
    }
}

/// Returns merges that make, from runs of `a`, a token of `b` and letters `a` of `len` bytes; best merges
/// first.
fn long_token_parts(len: usize) -> Vec<(String, String)> {
    let a = |n: usize| "a".repeat(n);
    let powers: Vec<usize> = (0..usize::BITS).map(|bit| 1 << bit).take_while(|&power| power < len).collect();
    let mut merges: Vec<(String, String)> = powers.windows(2).map(|pair| (a(pair[0]), a(pair[0]))).collect();
    let mut made = "b".to_owned();
    for &power in powers.iter().rev() {
        if made.len() + power <= len {
            merges.push((made.clone(), a(power)));
            made.push_str(&a(power));
        }
    }
    merges
}

fn byte_level_of_long_token(len: usize) -> GgufWriter<'static> {
    let mut tokens: Vec<String> = (0..=255).map(|b| byte_to_char(b).to_string()).collect();
    let parts = long_token_parts(len);
    tokens.extend(parts.iter().map(|(left, right)| format!("{left}{right}")));
    let mut w = GgufWriter::new();
    w.set("tokenizer.ggml.model", "gpt2").set("tokenizer.ggml.pre", "gpt-2");
    w.set("tokenizer.ggml.token_type", vec![NORMAL; tokens.len()]).set("tokenizer.ggml.tokens", tokens);
    let merges: Vec<String> = parts.iter().map(|(left, right)| format!("{left} {right}")).collect();
    w.set("tokenizer.ggml.merges", merges);
    w
}

fn scored_of_long_token(len: usize) -> GgufWriter<'static> {
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>", "▁", "a", "b"].map(str::to_owned).to_vec();
    let mut types = vec![UNKNOWN, CONTROL, CONTROL, NORMAL, NORMAL, NORMAL];
    for (left, right) in long_token_parts(len) {
        tokens.push(left + &right);
        types.push(NORMAL);
    }
    let scores: Vec<f32> = (0..tokens.len()).map(|rank| -(rank as f32)).collect();
    let mut w = GgufWriter::new();
    w.set("tokenizer.ggml.model", "llama").set("tokenizer.ggml.tokens", tokens);
    w.set("tokenizer.ggml.scores", scores).set("tokenizer.ggml.token_type", types);
    w
}

#[test]
fn tokens_too_long_for_blocks_are_refused() {
    for len in [8_192, 16 << 10, 20_000] {
        for w in [byte_level_of_long_token(len), scored_of_long_token(len)] {
            let gguf = Gguf::from_bytes(w.to_bytes().unwrap()).unwrap();
            let err = Tokenizer::from_gguf(&gguf).unwrap_err();
            assert!(matches!(err, TokenizerError::TokenTooLong { max: 8_191, .. }), "{len}: {err}");
        }
    }
}

#[test]
fn texts_of_the_longest_tokens_end_and_come_back() {
    let longest = "b".to_owned() + &"a".repeat(8_190);
    let text = longest.repeat(20);
    for (w, before) in [(byte_level_of_long_token(8_191), ""), (scored_of_long_token(8_191), " ")] {
        let t = tokenizer(&w);
        check_covers(&t, &text);
        let ids = t.encode(&text);
        let bytes: Vec<u8> = ids.iter().flat_map(|&id| t.token_bytes(id).to_vec()).collect();
        assert!(bytes == format!("{before}{text}").into_bytes());
        assert_eq!(ids.len(), 20 + before.len());
    }
}

#[test]
fn tokens_are_counted_without_keeping_them() {
    let t = tokenizer(&byte_level_gguf("gpt-2"));
    for text in long_texts() {
        let tokens = t.encode(&text).len();
        assert!(!t.exceeds([text.as_str()], tokens));
        assert!(t.exceeds([text.as_str()], tokens * 9 / 10), "{:?}…", &text[..8]);
        assert!(t.exceeds([text.as_str(), text.as_str()], tokens * 19 / 10));
    }
    // Of a text far too long, only the beginning is encoded.
    let endless = "ab".repeat(8 << 20);
    assert!(t.exceeds([endless.as_str()], 100));
}

#[test]
fn no_token_stands_for_more_bytes_than_the_longest() {
    for t in [tokenizer(&byte_level_gguf("gpt-2")), tokenizer(&scored_gguf())] {
        for text in long_texts().iter().map(String::as_str).chain(["▁▁▁the▁hello", "\u{10ffff}"]) {
            let (_, spans) = t.encode_spans(text);
            let longest = spans.iter().map(|span| span.len()).max().unwrap_or(0);
            assert!(longest <= t.token_bytes_max(), "{longest} bytes of {:?}…", &text[..4]);
        }
    }
}
