//! A worker that returns while the head serves.

use super::devices::{Served, ring};

const QUESTION: &str = "What does a ring of devices do?";
const TOKENS: usize = 32;

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_started_again_is_in_the_plan_of_a_later_answer() {
    let want = Served::alone().await.expect("one device").answer(QUESTION, TOKENS).await.expect("its answer");
    assert!(!want.is_empty());
    let mut home = ring(&["desk", "phone"]).await.expect("a ring of three devices");
    let mut head =
        Served::of(&home, &[("head", 2), ("desk", 1), ("phone", 2)], 1).await.expect("the head serves");
    head.has_devices(3).await.expect("all are in the ring");
    assert_eq!(head.answer(QUESTION, TOKENS).await.expect("an answer"), want, "by three devices");
    home.workers[1].kill().await.expect("kill a worker");
    assert_eq!(head.answer(QUESTION, TOKENS).await.expect("an answer"), want, "without one of them");
    let stats = head.stats().await.expect("the ring's figures");
    assert_eq!(stats["lost"][0]["name"], "phone", "{stats}");
    home.workers[1].again().await.expect("start the worker again");
    head.has_devices(3).await.expect("it is in the ring again");
    assert_eq!(head.answer(QUESTION, TOKENS).await.expect("an answer"), want, "by three devices again");
    let stats = head.stats().await.expect("the ring's figures");
    assert!(
        stats["devices"].as_array().is_some_and(|all| all.iter().any(|one| one["name"] == "phone")),
        "{stats}"
    );
}
