//! Compares the scores with LongBench's own program on all recorded cases, which `data/record.py` made.

use std::collections::BTreeMap;

use baton_longbench::{Metric, chinese_words};
use serde_json::Value;

/// Reads a recorded text: a string, or `[piece, count]` pairs.
fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(pieces) => {
            let piece = |pair: &Value| {
                let (text, count): (String, usize) =
                    serde_json::from_value(pair.clone()).expect("a repeated piece is a pair");
                text.repeat(count)
            };
            pieces.iter().map(piece).collect()
        }
        other => panic!("not a text: {other}"),
    }
}

#[test]
fn every_score_is_the_official_one() {
    let recorded: Value = serde_json::from_str(include_str!("../data/cases.json")).unwrap();
    let classes: Vec<Vec<String>> = serde_json::from_value(recorded["classes"].clone()).unwrap();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let mut wrong = Vec::new();
    for row in recorded["rows"].as_array().unwrap() {
        let metric: Metric = row[0].as_str().unwrap().parse().unwrap();
        let (prediction, truth) = (text(&row[1]), text(&row[2]));
        let classes = row[4].as_u64().map_or(&[][..], |index| &classes[usize::try_from(index).unwrap()]);
        let want = row[3].as_f64().unwrap();
        let got = metric.score(&prediction, &truth, classes).unwrap();
        *counts.entry(metric.as_str()).or_default() += 1;
        if (got - want).abs() >= 1e-9 {
            let shown = |text: &str| text.chars().take(80).collect::<String>();
            wrong.push(format!(
                "{}: {got}, recorded {want}: {:?} against {:?}",
                metric.as_str(),
                shown(&prediction),
                shown(&truth)
            ));
        }
    }
    assert!(wrong.is_empty(), "{} cases differ:\n{}", wrong.len(), wrong.join("\n"));
    assert_eq!(counts.len(), 9, "{counts:?}");
    assert!(counts.values().all(|&count| count >= 50), "{counts:?}");
}

#[test]
fn words_are_those_of_python() {
    let recorded: Value = serde_json::from_str(include_str!("../data/words.json")).unwrap();
    let rows: Vec<Vec<String>> = serde_json::from_value(recorded["rows"].clone()).unwrap();
    assert!(rows.len() >= 300);
    for want in rows {
        let text = want.concat();
        assert_eq!(chinese_words(&text), want, "{text:?}");
    }
}
