//! Boundaries that a person set by hand, in texts of every kind that `s1` knows about.
//!
//! In the files of `golden/`, `¦` stands before every unit and `‡` before every title line; the text is what
//! is left without them.

use baton_protocol::{Role, Segment, SentenceMap};

#[track_caller]
fn check(name: &str, golden: &str) {
    let text = golden.replace(['¦', '‡'], "");
    let map = SentenceMap::new(&[Segment::refinable(Role::User, text.clone())]);
    let marked: String = map
        .units()
        .iter()
        .map(|unit| format!("{}{}", if unit.title { '‡' } else { '¦' }, &text[unit.bytes.clone()]))
        .collect();
    for (line, (got, want)) in marked.lines().zip(golden.lines()).enumerate() {
        assert_eq!(got, want, "{name}, line {}", line + 1);
    }
    assert_eq!(marked, golden, "{name}");
}

macro_rules! golden {
    ($($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                check(stringify!($name), include_str!(concat!("golden/", stringify!($name), ".txt")));
            }
        )*
    };
}

golden!(english chinese japanese korean mixed structure wrapped);
