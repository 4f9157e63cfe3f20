//! A worker is killed, stopped or cut off in every phase of an answer: its process by a signal, its
//! connections by a proxy.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::devices::{alone, begin, finish, ring};
use super::wire::{Way, Wire};
use baton_e2e::home::{Home, Worker};
use baton_e2e::process::Running;

/// Tokens of each answer.
const TOKENS: usize = 64;

/// What happens to the worker `phone`.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fate {
    Killed,
    Stopped,
}

/// When it happens, counted from the moment at which the worker has its part, as shares of an answer's time.
/// The moments are both in the prompt and between tokens.
const SHARES: [f64; 5] = [0.0, 0.1, 0.25, 0.5, 0.75];
/// Those of a run that should be short: one in the prompt, and one between tokens.
const FEW_SHARES: [f64; 2] = [0.1, 0.5];
/// Number of further moments to try if none of these was during an answer, because other programs used the
/// CPUs.
const MORE: u32 = 16;
const PLAN: [(&str, usize); 3] = [("head", 1), ("desk", 2), ("phone", 2)];

/// Returns the moments for answers of this duration; the flag marks the further ones.
fn moments(lasts: Duration) -> impl Iterator<Item = (bool, Duration)> {
    let more = (1..=MORE).map(move |at| (true, lasts * at / MORE));
    let all = std::env::var_os("BATON_TEST_ALL").is_some_and(|value| !value.is_empty());
    let shares: &[f64] = if all { &SHARES } else { &FEW_SHARES };
    shares.iter().map(move |share| (false, lasts.mul_f64(*share))).chain(more)
}

/// Waits until the worker has its part of the head's ring; returns its event.
///
/// Panics with the head's output if the head ends before that.
async fn has_part(head: &mut Running, phone: &mut Worker) -> Value {
    tokio::select! {
        ready = phone.says("ready") => ready.expect("the worker has its part"),
        _ = head.wait() => panic!("the head ended before the worker had its part: {:?}", finish(head).await),
    }
}

/// Measures an undisturbed answer, from the moment at which the worker has its part.
async fn undisturbed(home: &mut Home) -> Duration {
    let mut head = begin(home, &PLAN, 2, TOKENS).expect("start the head");
    has_part(&mut head, &mut home.workers[1]).await;
    let begun = Instant::now();
    finish(&mut head).await.expect("an answer");
    let lasts = begun.elapsed();
    home.workers[1].says("head_gone").await.expect("the worker notices that its head is gone");
    lasts
}

/// Sends a signal to a process of this test.
fn signal(pid: u32, name: &str) {
    let sent = std::process::Command::new("kill").args([format!("-{name}"), pid.to_string()]).status();
    assert!(sent.expect("run kill").success(), "kill -{name} {pid}");
}

/// Runs one answer during which the worker is disturbed; returns what the head's bench prints.
async fn answer(home: &mut Home, fate: Fate, moment: Duration) -> Value {
    let mut head = begin(home, &PLAN, 2, TOKENS).expect("start the head");
    let phone = &mut home.workers[1];
    has_part(&mut head, phone).await;
    tokio::time::sleep(moment).await;
    let pid = phone.child.id().expect("the worker runs");
    signal(pid, if fate == Fate::Killed { "KILL" } else { "STOP" });
    finish(&mut head).await.expect("the head goes on and its answer is whole")
}

/// Makes the worker ready for the next head.
async fn back(phone: &mut Worker, fate: Fate) {
    match fate {
        Fate::Killed => {
            // Its end is certain only after the system has released its port.
            phone.kill().await.expect("it is dead");
            phone.again().await.expect("start the worker again");
        }
        Fate::Stopped => {
            signal(phone.child.id().expect("the worker is there"), "CONT");
            phone.says("head_gone").await.expect("the worker notices that its head is gone");
        }
    }
}

async fn at_every_moment(fate: Fate) {
    let want = alone(TOKENS).await.expect("one device alone");
    let mut home = ring(&["desk", "phone"]).await.expect("a ring of three devices");
    let lasts = undisturbed(&mut home).await;
    let mut recovered = 0;
    for (more, moment) in moments(lasts) {
        if more && recovered > 0 {
            break;
        }
        let have = answer(&mut home, fate, moment).await;
        assert_eq!(have["written"], want["written"], "{fate:?} after {moment:?}");
        let stats = &have["ring"];
        let lost: Vec<&str> =
            stats["lost"].as_array().into_iter().flatten().filter_map(|lost| lost["name"].as_str()).collect();
        assert!(lost.iter().all(|name| *name == "phone"), "{stats}");
        recovered += usize::from(stats["recoveries"] != 0);
        back(&mut home.workers[1], fate).await;
    }
    assert!(recovered > 0, "no moment fell into an answer");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_killed_costs_time_and_no_token() {
    at_every_moment(Fate::Killed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_stands_still_costs_time_and_no_token() {
    at_every_moment(Fate::Stopped).await;
}

/// How the worker `phone` is cut off.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Cut {
    /// All its connections end, in both directions.
    All,
    /// Only the newest connection ends: the ring's connection to it.
    Newest,
    /// No data passes any more, but no connection ends.
    Silent,
}

fn cut(wire: &Wire, how: Cut) {
    match how {
        Cut::All => wire.set(Way::Cut),
        Cut::Newest => wire.cut_newest(),
        Cut::Silent => wire.set(Way::Silent),
    }
}

async fn cut_at_every_moment(how: Cut) {
    let want = alone(TOKENS).await.expect("one device alone");
    let mut home = ring(&["desk", "phone"]).await.expect("a ring of three devices");
    let lasts = undisturbed(&mut home).await;
    let mut recovered = 0;
    for (more, moment) in moments(lasts) {
        if more && recovered > 0 {
            break;
        }
        let wire = Wire::before(&home, 1).await.expect("a proxy before the worker");
        let mut head = begin(&home, &PLAN, 2, TOKENS).expect("start the head");
        let ready = has_part(&mut head, &mut home.workers[1]).await;
        assert_eq!(ready["epoch"], 1, "{ready}");
        tokio::time::sleep(moment).await;
        cut(&wire, how);
        let have = finish(&mut head).await.expect("the head goes on and its answer is whole");
        assert_eq!(have["written"], want["written"], "{how:?} after {moment:?}");
        let stats = &have["ring"];
        let lost = stats["lost"].as_array().map_or(0, Vec::len);
        let phone = stats["lost"].as_array().into_iter().flatten().all(|lost| lost["name"] == "phone");
        assert!(phone, "{stats}");
        if how == Cut::Newest {
            assert_eq!(lost, 0, "one cut link costs an epoch and no device: {stats}");
        }
        recovered += usize::from(stats["recoveries"] != 0);
        // Ends its remaining connections, so that the worker is free for the next head.
        drop(wire);
        home.workers[1].says("head_gone").await.expect("the worker notices that its head is gone");
    }
    assert!(recovered > 0, "no moment fell into an answer");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_whose_links_are_cut_costs_time_and_no_token() {
    cut_at_every_moment(Cut::All).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_link_that_is_cut_costs_time_and_no_device() {
    cut_at_every_moment(Cut::Newest).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_from_which_nothing_comes_any_more_costs_time_and_no_token() {
    cut_at_every_moment(Cut::Silent).await;
}
