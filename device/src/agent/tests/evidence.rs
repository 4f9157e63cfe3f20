//! Citations: ranges of the texts as they were given, whatever became of the prompt.

use super::*;
use baton_protocol::{MaskEvent, SentenceMap, sentences};

const DOCUMENT: &str = "Dor has bells and rings. Mail ann@example.com about the bells of Dor! The toys of \
    Fen are kites, and ann@example.com knows them.\n\nNobody at 10.0.0.7 plays in Vel. Alb sings loudly.";

fn asked(mode: RelayMode) -> Question {
    let segments = vec![
        Segment::fixed(Role::System, "You answer. Be brief."),
        Segment::refinable(Role::User, DOCUMENT),
        Segment::fixed(Role::User, "\n\nQuestion: What are the toys of Fen?"),
    ];
    Question { segments, cites: true, tokens_max: 24, ..question("", mode) }
}

/// Checks that all sources are sentences of the document as it was given; returns their indices.
#[track_caller]
fn check(report: &AnswerReport) -> Vec<usize> {
    let all = sentences(DOCUMENT);
    let whole = |range: &std::ops::Range<usize>| DOCUMENT[range.clone()].trim();
    let citations = report.citations.as_ref().unwrap();
    assert!(!citations.is_empty(), "{report:?}");
    let mut cited = Vec::new();
    for citation in citations {
        assert!(report.answer.get(citation.answer[0]..citation.answer[1]).is_some(), "{citation:?}");
        assert!((1..=2).contains(&citation.sources.len()), "{citation:?}");
        for source in &citation.sources {
            let [start, end] = source.bytes;
            let found = all.iter().position(|range| whole(range) == &DOCUMENT[start..end]);
            cited.push(found.unwrap_or_else(|| panic!("`{}`", &DOCUMENT[start..end])));
            assert!(source.segment == 1 && source.score > 0.0 && source.score <= 1.0, "{source:?}");
        }
    }
    cited
}

#[tokio::test]
async fn an_answer_cites_sentences_of_the_document_as_it_was_given() {
    let alone = agent(None);
    let (report, _) = ask(&alone, asked(RelayMode::DeviceOnly)).await;
    check(&report);
    let (plain, _) = ask(&alone, Question { cites: false, ..asked(RelayMode::DeviceOnly) }).await;
    assert_eq!((plain.answer, plain.citations), (report.answer, None), "citations change no text");
    // The prompt was redacted for a cloud that then does not answer.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let (report, _) = ask(&agent(Some(&url)), asked(RelayMode::Relay)).await;
    assert!(codes(&report).contains(&"redacted"), "{report:?}");
    check(&report);
}

#[tokio::test]
async fn behind_a_mask_only_kept_sentences_are_cited() {
    // What the cloud is asked has placeholders, and units of its own.
    let mut redactor = crate::privacy::Redactor::default();
    let mut segments = asked(RelayMode::Relay).segments;
    for segment in &mut segments {
        segment.text = redactor.redact(&segment.text).unwrap().as_str().to_owned();
    }
    let map = SentenceMap::new(&segments);
    let kept: Vec<bool> = (0..map.len()).map(|unit| [1, 2].contains(&unit)).collect();
    let mask = serde_json::to_string(&MaskEvent::new(&map, &kept, 0.5, 0.7)).unwrap();
    let whole = stream(&["One", " two", " three"]);
    let (head, events) = whole.split_once("\r\n\r\n").unwrap();
    let cut = events.find("event: end").unwrap();
    let events = events[..cut].replace("\"assist_tokens\":3", "\"assist_tokens\":9");
    let cloud = FakeCloud::start(format!("{head}\r\n\r\nevent: mask\ndata: {mask}\n\n{events}")).await;
    let (report, _) = ask(&agent(Some(&cloud.url)), asked(RelayMode::Relay)).await;
    assert!(report.timeline.mask_bytes.is_some() && report.answer.starts_with("One two three"), "{report:?}");
    let cited = check(&report);
    assert!(cited.iter().all(|sentence| [1, 2].contains(sentence)), "{cited:?}");
}
