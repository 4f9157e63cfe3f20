//! Tests the text of answers against a naive reading of the whole answer.

use baton_random::SplitMix64;

use super::*;
use crate::answer::tests::{byte_id, naive_stop, tokenizer};

/// Bytes of which several make characters, and some make none.
const BYTES: &[u8] = "abé日".as_bytes();
const STOPS: &[&str] = &["ab", "a", "é", "ba", "日", "aba", "\u{fffd}"];

/// Makes letters large, and holds back the last character until it knows the next.
#[derive(Default)]
struct Large(String);

impl TextFilter for Large {
    fn push(&mut self, text: &str) -> String {
        self.0.push_str(&text.to_uppercase());
        let last = self.0.char_indices().last().map_or(0, |(at, _)| at);
        let held = self.0.split_off(last);
        std::mem::replace(&mut self.0, held)
    }

    fn finish(&mut self) -> String {
        std::mem::take(&mut self.0)
    }
}

fn stops(random: &mut SplitMix64) -> Vec<String> {
    (0..random.below(3)).map(|_| STOPS[random.below(STOPS.len())].to_owned()).collect()
}

fn bytes(random: &mut SplitMix64) -> Vec<u8> {
    (0..random.below(24)).map(|_| BYTES[random.below(BYTES.len())]).collect()
}

fn push_all<F: TextFilter>(text: &mut AnswerText<F>, bytes: &[u8]) -> (String, String) {
    let (mut model_text, mut shown) = (String::new(), String::new());
    for &byte in bytes {
        let pushed = text.push(byte_id(byte));
        model_text.push_str(&pushed.model_text);
        shown.push_str(&pushed.shown);
        assert_eq!(pushed.stopped, text.stopped());
    }
    (model_text, shown)
}

#[test]
fn the_shown_text_is_the_whole_text_up_to_the_first_stop_string() {
    let mut random = SplitMix64::new(7);
    let mut stopped = 0;
    for case in 0..2_000 {
        let (bytes, stops) = (bytes(&mut random), stops(&mut random));
        let whole = String::from_utf8_lossy(&bytes).into_owned();
        let mut text = AnswerText::new(tokenizer(), (), StopStrings::new(&stops).unwrap());
        let (model_text, mut shown) = push_all(&mut text, &bytes);
        let last = text.finish("");
        shown.push_str(&last.shown);
        let (want, stops_here) = naive_stop(&whole, &stops);
        assert_eq!((shown.as_str(), text.stopped()), (want, stops_here), "case {case}: {whole:?} {stops:?}");
        if stops_here {
            stopped += 1;
            assert!(whole.starts_with(&model_text));
            assert_eq!(text.push(byte_id(b'x')).shown, "");
            assert_eq!(text.finish("more").shown, "");
            assert_eq!(text.at_handover(), "");
        } else {
            assert_eq!(model_text + &last.model_text, whole);
        }
    }
    assert!(stopped > 200, "{stopped} of the texts had a stop string");
}

#[test]
fn a_filter_works_before_the_stop_strings() {
    let mut random = SplitMix64::new(8);
    for case in 0..1_000 {
        let (bytes, stops) = (bytes(&mut random), stops(&mut random));
        let stops: Vec<String> = stops.iter().map(|stop| stop.to_uppercase()).collect();
        let mut text = AnswerText::new(tokenizer(), Large::default(), StopStrings::new(&stops).unwrap());
        let (_, shown) = push_all(&mut text, &bytes);
        let shown = shown + &text.finish("ba").shown;
        let large = (String::from_utf8_lossy(&bytes).into_owned() + "ba").to_uppercase();
        assert_eq!(shown, naive_stop(&large, &stops).0, "case {case}: {large:?} {stops:?}");
    }
}

#[test]
fn pieces_of_text_pass_as_tokens_do() {
    let mut random = SplitMix64::new(9);
    for case in 0..1_000 {
        let stops = stops(&mut random);
        let whole: String = (0..random.below(12)).map(|_| ['a', 'b', 'é', '日'][random.below(4)]).collect();
        let mut text = AnswerText::new(tokenizer(), (), StopStrings::new(&stops).unwrap());
        let mut shown = String::new();
        for letter in whole.chars().map(String::from) {
            if random.percent(50) {
                shown.push_str(&text.push_text(&letter).shown);
            } else {
                shown.push_str(&push_all(&mut text, letter.as_bytes()).1);
            }
        }
        shown.push_str(&text.finish("").shown);
        assert_eq!(shown, naive_stop(&whole, &stops).0, "case {case}: {whole:?} {stops:?}");
    }
}

#[test]
fn at_a_handover_only_an_incomplete_character_stays() {
    let mut text = AnswerText::new(tokenizer(), (), StopStrings::new(&["abc".to_owned()]).unwrap());
    let (_, shown) = push_all(&mut text, &"xab".as_bytes()[..3]);
    assert_eq!((shown.as_str(), text.at_handover().as_str()), ("x", "ab"));
    let mut text = AnswerText::new(tokenizer(), (), StopStrings::default());
    assert_eq!(push_all(&mut text, &"é".as_bytes()[..1]).1, "");
    assert_eq!(text.at_handover(), "");
    assert_eq!(push_all(&mut text, &"é".as_bytes()[1..]).1, "é");
    push_all(&mut text, &"é".as_bytes()[..1]);
    text.drop_incomplete();
    assert_eq!(push_all(&mut text, b"a").1, "a");
    push_all(&mut text, &"é".as_bytes()[..1]);
    assert_eq!(text.finish("!").shown, "\u{fffd}!");
}
