//! Frames as clients read them.

use baton_protocol::ErrorCode;
use serde_json::json;

use super::*;
use crate::logprobs::tests::place;
use crate::reply::Message;
use crate::tool_calls::ToolPiece;

fn usage() -> Usage {
    baton_protocol::Usage { prompt_tokens: 3, cached_prefix_tokens: 0, completion_tokens: 2 }.into()
}

fn ending() -> Ending {
    Ending::new(FinishReason::Stop, usage())
}

/// Returns the whole stream of an answer made of these parts.
fn streamed(wishes: StreamWishes, pieces: Vec<Piece>) -> String {
    let mut writer = ChunkWriter::new(Head::new("m"), wishes, false);
    let mut out = String::new();
    for piece in pieces {
        writer.begin(None, &mut out);
        writer.piece(piece, &mut out);
    }
    writer.begin(None, &mut out);
    writer.end(ending(), &mut out);
    writer.done(&mut out);
    out
}

/// Returns the JSON of all data lines. The last one must be `[DONE]` and is left out.
#[track_caller]
fn chunks(text: &str) -> Vec<Value> {
    let mut data: Vec<&str> =
        text.split_terminator("\n\n").filter_map(|frame| frame.strip_prefix("data: ")).collect();
    assert_eq!(data.pop(), Some("[DONE]"), "{text}");
    data.into_iter().map(|data| serde_json::from_str(data).unwrap()).collect()
}

#[test]
fn the_first_chunk_has_the_role_and_the_last_the_reason() {
    let chunks = chunks(&streamed(StreamWishes::default(), vec![Piece::text("a\nb"), Piece::text("c")]));
    let choice = |delta: Value, reason: Value| json!([{ "index": 0, "delta": delta, "logprobs": null, "finish_reason": reason }]);
    let want = [
        choice(json!({ "role": "assistant", "content": "", "refusal": null }), Value::Null),
        choice(json!({ "content": "a\nb" }), Value::Null),
        choice(json!({ "content": "c" }), Value::Null),
        choice(json!({}), json!("stop")),
    ];
    for (chunk, want) in chunks.iter().zip(&want) {
        assert_eq!(&chunk["choices"], want);
        assert_eq!((&chunk["id"], &chunk["object"]), (&chunks[0]["id"], &json!("chat.completion.chunk")));
        assert!(chunk.get("usage").is_none() && chunk.get("baton").is_none(), "{chunk}");
    }
    assert_eq!(chunks.len(), want.len());
}

#[test]
fn usage_is_null_until_the_last_chunk_says_it() {
    let wishes = StreamWishes { usage: true, progress: false };
    let chunks = chunks(&streamed(wishes, vec![Piece::text("a")]));
    let (last, rest) = chunks.split_last().unwrap();
    assert!(rest.iter().all(|chunk| chunk.get("usage") == Some(&Value::Null)), "{rest:?}");
    assert_eq!((&last["choices"], &last["usage"]), (&json!([]), &json!(usage())));
}

#[test]
fn the_chunks_put_together_are_the_whole_answer() {
    let pieces = [
        ToolPiece::Text("So: ".into()),
        ToolPiece::Call { index: 0, name: "f".into() },
        ToolPiece::Arguments { index: 0, text: "{\"a\"".into() },
        ToolPiece::Arguments { index: 0, text: ":1}".into() },
    ];
    let mut pieces: Vec<Piece> = pieces.into_iter().map(Piece::from).collect();
    pieces.push(Piece::Text { text: "!".into(), logprobs: Some(place(&[0, 1])) });
    let mut message = Message::default();
    message.take(pieces.clone());
    let whole = serde_json::to_value(message.into_completion(Head::new("m"), ending())).unwrap();
    let (mut content, mut arguments, mut places, mut id) = (String::new(), String::new(), Vec::new(), None);
    for chunk in chunks(&streamed(StreamWishes::default(), pieces)) {
        let choice = &chunk["choices"][0];
        content.push_str(choice["delta"]["content"].as_str().unwrap_or_default());
        let call = &choice["delta"]["tool_calls"][0];
        arguments.push_str(call["function"]["arguments"].as_str().unwrap_or_default());
        id = id.or_else(|| call["id"].as_str().map(str::to_owned));
        places.extend(choice["logprobs"]["content"].as_array().into_iter().flatten().cloned());
    }
    let choice = &whole["choices"][0];
    let call = &choice["message"]["tool_calls"][0];
    assert_eq!(choice["message"]["content"], content.as_str());
    assert_eq!((&call["function"]["arguments"], call["id"].as_str()), (&json!(arguments), id.as_deref()));
    assert_eq!(choice["logprobs"]["content"], json!(places));
}

#[test]
fn progress_is_a_comment_and_a_chunk_for_one_who_asked() {
    let progress = json!({ "stage": "prefill", "computed": 1, "total": 2 });
    for told in [false, true] {
        let wishes = StreamWishes { usage: false, progress: told };
        let (mut writer, mut out) = (ChunkWriter::new(Head::new("m"), wishes, false), String::new());
        writer.progress(&progress, &mut out);
        writer.done(&mut out);
        assert!(out.starts_with(": progress {") && out.contains("}\n\ndata: "), "{out}");
        let chunks = chunks(&out);
        assert_eq!(chunks.len(), usize::from(told));
        assert!(chunks.iter().all(|chunk| chunk["x_progress"] == progress && chunk["choices"] == json!([])));
    }
}

#[test]
fn an_error_and_what_baton_adds_are_frames_too() {
    let (mut writer, mut out) =
        (ChunkWriter::new(Head::new("m"), StreamWishes::default(), false), String::new());
    writer.begin(Some(json!({ "assist_tokens": 4 })), &mut out);
    writer.begin(Some(json!("never told again")), &mut out);
    writer.error(&ErrorReply::new(ErrorCode::Unavailable, "it stops"), &mut out);
    writer.done(&mut out);
    let chunks = chunks(&out);
    assert_eq!((chunks.len(), &chunks[0]["baton"]["assist_tokens"]), (2, &json!(4)));
    assert_eq!(
        (&chunks[1]["error"]["code"], &chunks[1]["error"]["param"]),
        (&json!("unavailable"), &Value::Null)
    );
}

#[test]
fn thinking_has_a_field_of_its_own_and_citations_count_from_the_content() {
    let text = "<think>\nHm.\n</think>\n\nOne. Two.";
    let at = text.find("One").unwrap();
    let cited = |start: usize, end: usize| json!({ "answer": [start, end], "sources": [] });
    let ending = || {
        let citations = json!({ "citations": [cited(8, 11), cited(at, at + 4), cited(at + 5, at + 9)] });
        Ending { baton: Some(citations), ..ending() }
    };
    let want = json!([cited(0, 4), cited(5, 9)]);
    let new = || ChunkWriter::new(Head::new("m"), StreamWishes::default(), false);
    let mut message = Message::default();
    message.take([Piece::text(text)]);
    let whole: Value = serde_json::from_str(&Box::new(new()).whole(message, ending())).unwrap();
    let told = &whole["choices"][0]["message"];
    assert_eq!((&told["reasoning_content"], &told["content"]), (&json!("Hm."), &json!("One. Two.")));
    assert_eq!(whole["baton"]["citations"], want);
    let mut writer = new();
    let mut out = String::new();
    writer.begin(None, &mut out);
    text.chars().for_each(|c| writer.piece(Piece::text(c), &mut out));
    writer.end(ending(), &mut out);
    writer.done(&mut out);
    let chunks = chunks(&out);
    let joined = |field: &str| -> String {
        chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"][field].as_str()).collect()
    };
    assert_eq!((joined("reasoning_content").as_str(), joined("content").as_str()), ("Hm.", "One. Two."));
    assert_eq!(chunks.last().unwrap()["baton"]["citations"], want);
}

#[test]
fn every_token_of_a_thought_has_its_log_probabilities() {
    let mut writer = ChunkWriter::new(Head::new("m"), StreamWishes::default(), true);
    let mut out = String::new();
    writer.begin(None, &mut out);
    for text in ["Hm", ".</th", "ink>", "\n\n", "One", "."] {
        writer.piece(Piece::Text { text: text.to_owned(), logprobs: Some(place(&[0])) }, &mut out);
    }
    writer.end(ending(), &mut out);
    writer.done(&mut out);
    let places = |chunk: &Value| chunk["choices"][0]["logprobs"]["content"].as_array().map_or(0, Vec::len);
    assert_eq!(chunks(&out).iter().map(places).sum::<usize>(), 6);
}
