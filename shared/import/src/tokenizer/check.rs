//! Checks that a vocabulary was understood: runs both tokenizers on the same texts.

use baton_engine::Tokenizer;
use baton_engine::tokenizer::JsonOptions;

use crate::error::ImportError;

/// Texts that pre-tokenizers split differently: case and contractions, runs of digits, of signs and of white
/// space, line ends, scripts with and without spaces, emoji. All are in composed form.
const TEXTS: &[&str] = &[
    "Hello, world! It's what THEY'RE saying; we'll see, WE'VE seen, I'd say, I'M sure.",
    "1 22 333 4444 55555 3.14 1,000,000 0x1f v2.0-rc1 99% 7th ²³ ½ ٣٤",
    "  two  three   four\tfive\t\tsix \n seven\n\neight\r\n\r\n  nine   ",
    "fn main() {\n    println!(\"{}\", a[i] += 1); // ok?\n}\n\n\n",
    "!!! ... ------ ====== ??? '''''' ```` \"\"\" (a) [b] {c} <d> #e @f $g &h *i ~j ^k |l \\m /n _o",
    "Größe, façade, naïve, Ελλάδα, Привет мир, שלום, مرحبا بالعالم, नमस्ते",
    "你好,世界。今天是2024年1月15日 こんにちは カタカナ 한국어 문장입니다 ไทย",
    "🚀 🦙🦙 👩‍💻 é \u{a0}x\u{3000}y CamelCaseWords snake_case_words https://example.org/a?b=c",
    "ALLCAPS don'T CAN'T o'clock rock'n'roll ’s “quoted” — dash – dash … end",
    "a",
    " ",
    "\n",
];
/// The most ids that a message shows.
const SHOWN: usize = 12;

/// Returns the tokenizer that the file itself defines.
///
/// # Errors
/// [`ImportError::ReadTokenizer`] if the library for such files refuses it.
pub(super) fn original(json: &[u8]) -> Result<Tokenizer, ImportError> {
    Tokenizer::from_json_bytes(json, JsonOptions::default()).map_err(ImportError::ReadTokenizer)
}

/// Compares the ids of every text.
///
/// # Errors
/// [`ImportError::TokenizerDiffers`] with the first text whose ids differ.
pub(super) fn same_ids(made: &Tokenizer, original: &Tokenizer) -> Result<(), ImportError> {
    for text in TEXTS {
        let (mut found, mut want) = (made.encode(text), original.encode(text));
        if found != want {
            let same = found.iter().zip(&want).take_while(|(found, want)| found == want).count();
            let show = |ids: &mut Vec<u32>| ids.drain(same.min(ids.len())..).take(SHOWN).collect();
            let (found, want) = (show(&mut found), show(&mut want));
            return Err(ImportError::TokenizerDiffers { text: (*text).to_owned(), found, want });
        }
    }
    Ok(())
}
