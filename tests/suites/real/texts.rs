//! Texts: the project's own pages and code, and pieces in other scripts.

use std::path::Path;

use baton_random::SplitMix64;

/// Text in scripts without spaces, right to left, with marks, and signs of several code points.
const OTHER: &str = "长江是中国最长的河流，发源于青藏高原，流经十一个省级行政区，最后注入东海。今日は天気がいいので、\
     公園を散歩してから図書館へ行きました。서울은 한강을 끼고 있는 대한민국의 수도이다. Москва — столица России, \
     город федерального значения. القاهرة هي عاصمة جمهورية مصر العربية وأكبر مدنها. नई दिल्ली भारत की राजधानी है। \
     Đà Nẵng là một thành phố; naïve café, Straße, Ærøskøbing. 👩‍🚀🚀 made it: 🎉🎉 3×10⁸ m/s ≈ c, ∀x∈ℝ: x²≥0. 🇫🇷🇯🇵 ";

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|err| panic!("{}: {err}", path.display()))
}

/// Returns English text about this project.
pub(super) fn prose() -> String {
    ["README.md", "docs/operators.md", "docs/devices.md", "docs/api.md"].map(read).concat()
}

/// Returns Rust code of this project.
pub(super) fn code() -> String {
    ["shared/engine/src/forward.rs", "kernels/cpu/src/attention/lanes.rs"].map(read).concat()
}

/// Returns text in other scripts.
pub(super) fn other() -> String {
    OTHER.repeat(60)
}

/// Returns a piece of `text` of about `bytes` bytes that begins at a random character.
pub(super) fn piece<'t>(text: &'t str, bytes: usize, random: &mut SplitMix64) -> &'t str {
    let start = text.floor_char_boundary(random.below(text.len().saturating_sub(bytes).max(1)));
    &text[start..text.floor_char_boundary((start + bytes).min(text.len()))]
}

/// Returns a string of parts that tokenizers treat in different ways.
pub(super) fn random(sources: &[String], random: &mut SplitMix64) -> String {
    const ODD: [&str; 24] = [
        " ",
        "  ",
        "   ",
        "\n",
        "\r\n",
        "\n\n\n",
        "\t",
        " \n ",
        "'s",
        "'LL",
        "don't",
        "0",
        "12345",
        "3.14",
        "_",
        "::",
        "<|im_start|>",
        "<start_of_turn>",
        "<s>",
        "</s>",
        "[INST]",
        "\u{a0}",
        "\u{200d}",
        "e\u{301}",
    ];
    let mut text = String::new();
    for _ in 0..=random.below(7) {
        match random.below(10) {
            0..=3 => text += piece(&sources[random.below(sources.len())], 1 + random.below(40), random),
            4..=6 => text += ODD[random.below(ODD.len())],
            7 => text.extend(std::iter::repeat_n(
                ['a', ' ', '=', '9', '好', '\n'][random.below(6)],
                random.below(20),
            )),
            8 => text.extend(char::from_u32(random.below(0x250) as u32)),
            _ => text.extend(char::from_u32(random.below(0x1_fa00) as u32)),
        }
    }
    text
}
