//! A tenant who asks for more tokens than the day's quota, against the real process.

use std::net::SocketAddr;

use baton_e2e::hostile::quota::{ask, limited_service, question};
use tokio::task::JoinSet;

/// Tokens of a day, enough for some of forty questions.
const TOKENS: u64 = 500;

#[tokio::test]
async fn a_day_has_no_more_tokens_for_many_at_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let cloud = limited_service(folder.path(), TOKENS, &["--threads=2"]).await.expect("the service starts");
    let address: SocketAddr = cloud.address().parse().expect("an address");
    let mut all = JoinSet::new();
    for _ in 0..40 {
        all.spawn(async move { ask(address, &question(12, 8)).await });
    }
    let (mut served, mut used) = (0, 0);
    while let Some(told) = all.join_next().await {
        let told = told.expect("no panic").expect("a reply");
        assert!([200, 429].contains(&told.status), "{told:?}");
        served += usize::from(told.status == 200);
        used += told.tokens;
    }
    assert!(served > 0, "some are served");
    assert!(used <= TOKENS, "{served} answers used {used} of {TOKENS} tokens");
}

#[tokio::test]
async fn a_request_that_is_sent_again_is_charged_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let cloud = limited_service(folder.path(), TOKENS, &["--threads=2"]).await.expect("the service starts");
    let address: SocketAddr = cloud.address().parse().expect("an address");
    let again = question(25, 8);
    for _ in 0..3 {
        let told = ask(address, &again).await.expect("a reply");
        assert_eq!(told.status, 200, "{told:?}");
        assert!(told.tokens > TOKENS / 2, "two charges would not fit: {told:?}");
    }
    let other = ask(address, &question(25, 8)).await.expect("a reply");
    assert_eq!(other.status, 429, "another request with the same words has an id of its own");
}
