//! A plan's explanation in words, for the terminal and the status page.

use baton_plan::explain::{Cause, Explanation, WhatIf};

fn ms(seconds: f64) -> String {
    format!("{:.1}", seconds * 1e3)
}

/// Returns what bounds the time of a token in this plan, and what changes would do, one line each. `chosen`
/// is the plan's number of rounds.
pub fn lines(explanation: &Explanation, chosen: usize) -> String {
    let token_s = explanation.prediction.token_s;
    let cause = match explanation.bound_by.1 {
        Cause::Compute => "computing",
        Cause::Memory => "reading its memory",
        Cause::Disk => "waiting for its disk",
        Cause::Network => "handing on",
    };
    let mut out = format!("\nMost of a token: {} {cause}.\n", explanation.bound_by.0);
    let rounds = explanation.rounds.iter().filter_map(|rounds| Some((rounds.rounds, rounds.token_s?)));
    let rounds: Vec<String> = rounds
        .map(|(k, token_s)| format!("{k}: {}{}", ms(token_s), if k == chosen { " (chosen)" } else { "" }))
        .collect();
    out += &format!("Rounds, ms: {}\n", rounds.join(", "));
    let mut lines = |title: &str, all: &[WhatIf]| {
        for what in all {
            let change = what.token_s.map_or_else(
                || "no plan".to_owned(),
                |new| format!("{} ms ({:+.0} %)", ms(new), (new / token_s - 1.0) * 100.0),
            );
            out += &format!("{title} {}: {change}\n", what.device);
        }
    };
    lines("Without", &explanation.without);
    lines("Left out, since with it:", &explanation.left_out);
    lines("With a second", &explanation.twice);
    out
}
