//! Tests of the record of requests.

use baton_random::SplitMix64;

use super::*;

const LATER: Duration = Duration::from_millis(900);

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn new(id: &str) -> NewRequest {
    NewRequest {
        id: id.into(),
        tenant: "acme".into(),
        scene: Some("doc-qa".into()),
        model: "tiny".into(),
        prompt_tokens: 100,
        max_tokens: 24,
        arrived_at: ms(100),
        ..NewRequest::default()
    }
}

fn begin(book: &Arc<RequestBook>, id: &str) -> (LiveRequest, CancelFlag) {
    let flag = CancelFlag::default();
    (book.begin(new(id), flag.clone()), flag)
}

fn end(outcome: &'static str) -> RequestEnd {
    RequestEnd { outcome, tokens: 3, queue: ms(10), prefill: ms(20), decode: ms(30) }
}

fn all() -> RequestQuery {
    RequestQuery { limit: usize::MAX, ..RequestQuery::default() }
}

fn ids(found: &RequestsFound) -> Vec<&str> {
    found.requests.iter().map(|request| request.id.as_str()).collect()
}

#[test]
fn a_request_is_followed_to_its_end() {
    let book = Arc::<RequestBook>::default();
    let (live, _) = begin(&book, "a");
    let now = |at| book.get("a", at).unwrap();
    let waiting = now(ms(150));
    assert_eq!((waiting.state, waiting.elapsed, waiting.queue), (RequestState::Waiting, ms(50), None));
    live.opened(ms(160), 16);
    live.opened(ms(190), 16);
    live.wrote(ms(170), 0);
    let prefill = now(ms(200));
    assert_eq!((prefill.state, prefill.queue, prefill.max_tokens), (RequestState::Prefill, Some(ms(60)), 16));
    live.wrote(ms(250), 1);
    live.wrote(ms(270), 2);
    live.written_by("http://one");
    live.counted(90);
    let writing = now(ms(300));
    assert_eq!((writing.state, writing.tokens, writing.prompt_tokens), (RequestState::Writing, 2, 90));
    assert_eq!((writing.prefill, writing.decode, writing.outcome), (Some(ms(90)), None, None));
    assert_eq!(writing.engine.as_deref(), Some("http://one"));
    live.ended(end("cap"));
    let ended = now(LATER);
    assert_eq!((ended.state, ended.outcome, ended.tokens), (RequestState::Ended, Some("cap"), 3));
    assert_eq!((ended.elapsed, ended.decode), (ms(60), Some(ms(30))), "it gets no older");
    drop(live);
    let found = book.find(&all(), LATER);
    assert_eq!((found.running, found.ended, found.requests.len()), (0, 1, 1));
}

#[test]
fn a_refused_request_is_not_kept() {
    let book = Arc::<RequestBook>::default();
    drop(begin(&book, "a"));
    assert_eq!(book.find(&all(), LATER), RequestsFound::default());
    assert_eq!(book.known("a"), KnownRequests::Unknown);
}

#[test]
fn requests_are_found_by_id_and_by_what_they_are() {
    let book = Arc::<RequestBook>::default();
    let (first, _) = begin(&book, "ab-1");
    first.ended(end("stop"));
    let (_second, _) = begin(&book, "ab-2");
    let chat = NewRequest { tenant: "other".into(), scene: None, ..new("c") };
    let _third = book.begin(chat, CancelFlag::default());
    let find = |query: RequestQuery| {
        let found = book.find(&query, LATER);
        ids(&found).join(" ")
    };
    assert_eq!(find(all()), "c ab-2 ab-1", "running ones first, the newest first");
    assert_eq!(find(RequestQuery { id: "ab".into(), ..all() }), "ab-2 ab-1");
    assert_eq!(find(RequestQuery { id: "ab-1".into(), ..all() }), "ab-1");
    assert_eq!(find(RequestQuery { ended: Some(true), ..all() }), "ab-1");
    assert_eq!(find(RequestQuery { ended: Some(false), ..all() }), "c ab-2");
    assert_eq!(find(RequestQuery { tenant: Some("other".into()), ..all() }), "c");
    assert_eq!(find(RequestQuery { scene: Some("doc-qa".into()), ..all() }), "ab-2 ab-1");
    assert_eq!(find(RequestQuery { model: Some("none".into()), ..all() }), "");
    let one = book.find(&RequestQuery { limit: 1, ..all() }, LATER);
    assert!(one.has_more && one.requests.len() == 1 && one.running == 2, "{one:?}");
    assert!(!book.find(&RequestQuery { limit: 3, ..all() }, LATER).has_more);
    assert_eq!(book.get("ab", LATER), None, "only a whole id");
    assert_eq!((book.known("ab-1"), book.known("ab-2")), (KnownRequests::Ended, KnownRequests::Running(1)));
}

#[test]
fn a_client_ends_its_own_requests_only() {
    let book = Arc::new(RequestBook::default());
    let begin = |asker: u8, id: u128| {
        let flag = CancelFlag::default();
        let key = Some(([asker; 32], Uuid::from_u128(id)));
        (book.begin(NewRequest { key, ..new("a") }, flag.clone()), flag)
    };
    let (ours, theirs, other) = (begin(1, 1), begin(2, 1), begin(1, 2));
    let nobodys = CancelFlag::default();
    let _nobodys = book.begin(new("a"), nobodys.clone());
    assert_eq!(book.end(([1; 32], Uuid::from_u128(1))), 1);
    assert!(ours.1.is_set() && !theirs.1.is_set() && !other.1.is_set() && !nobodys.is_set());
    assert!(!ours.0.is_cancelled(), "no operator did it");
    drop(ours);
    assert_eq!(book.end(([1; 32], Uuid::from_u128(1))), 0);
}

#[test]
fn every_running_request_of_an_id_is_cancelled() {
    let book = Arc::<RequestBook>::default();
    let (one, flag) = begin(&book, "a");
    let (_two, other) = begin(&book, "a");
    let (_three, spared) = begin(&book, "ab");
    assert_eq!((book.cancel("a"), book.cancel("x")), (2, 0));
    assert!(flag.is_set() && other.is_set() && !spared.is_set() && one.is_cancelled());
    one.ended(end("cancelled"));
    assert_eq!(book.known("a"), KnownRequests::Running(1));
}

#[test]
fn the_bound_holds_and_what_runs_is_never_dropped() {
    for seed in 0..8 {
        let mut random = SplitMix64::new(seed);
        let book = Arc::<RequestBook>::default();
        let (mut live, mut ended, mut next) = (Vec::<(String, LiveRequest)>::new(), Vec::new(), 0);
        for _ in 0..3 * ENDED_MAX {
            match random.below(10) {
                0..5 => {
                    let id = format!("{next}");
                    live.push((id.clone(), begin(&book, &id).0));
                    next += 1;
                }
                5 if !live.is_empty() => drop(live.swap_remove(random.below(live.len()))),
                _ if !live.is_empty() => {
                    let (id, request) = live.swap_remove(random.below(live.len()));
                    request.ended(end("stop"));
                    ended.push(id);
                }
                _ => {}
            }
        }
        for at in 0..ENDED_MAX {
            let id = format!("last {at}");
            begin(&book, &id).0.ended(end("stop"));
            ended.push(id);
            if at % 500 == 0 {
                assert!(book.find(&all(), LATER).ended <= ENDED_MAX);
            }
        }
        let found = book.find(&RequestQuery { ended: Some(false), ..all() }, LATER);
        let mut running: Vec<&str> = live.iter().map(|(id, _)| id.as_str()).collect();
        running.sort_unstable_by_key(|id| std::cmp::Reverse(id.parse::<u32>().unwrap()));
        assert_eq!(ids(&found), running, "seed {seed}");
        let kept = book.find(&RequestQuery { ended: Some(true), ..all() }, LATER);
        assert_eq!(kept.ended, ENDED_MAX);
        let newest: Vec<&str> = ended.iter().rev().take(ENDED_MAX).map(String::as_str).collect();
        assert_eq!(ids(&kept), newest, "seed {seed}");
    }
}
