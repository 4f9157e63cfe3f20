//! Strangers at a running ring: port scanners, recordings of real connections, and a device that guesses a
//! code. None is accepted, and none disturbs the ring.

use super::devices::{alone, begin, bench, finish, guess, ring};
use super::wire::{Wire, shout};

const TOKENS: usize = 64;

/// Returns data that scanners and faulty programs send: almost nothing, other protocols, and announcements of
/// great lengths.
fn noise() -> Vec<Vec<u8>> {
    let mut all = vec![
        b"GET / HTTP/1.1\r\nHost: ring\r\n\r\n".to_vec(),
        b"SSH-2.0-OpenSSH_9.9\r\n".to_vec(),
        vec![0x16, 0x03, 0x01, 0xff, 0xff, 0x01, 0x00],
        vec![0; 4096],
        vec![0xff; 1 << 20],
    ];
    // Random bytes, the same in every run.
    let mut state = 0x9e37_79b9_u32;
    all.push(
        (0..10_000)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 24) as u8
            })
            .collect(),
    );
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn scanners_and_recordings_reach_nothing_while_an_answer_runs() {
    let want = alone(TOKENS).await.expect("one device alone");
    let mut home = ring(&["desk"]).await.expect("a ring of two devices");
    let wire = Wire::before(&home, 0).await.expect("a proxy before the worker");
    let plan = [("head", 2), ("desk", 3)];
    // An answer whose connections are recorded.
    let first = bench(&home, &plan, 1, TOKENS).await.expect("the ring's answer");
    assert_eq!(first["written"], want["written"]);
    let recorded: Vec<Vec<u8>> = wire.sent().into_iter().filter(|sent| sent.len() > 64).collect();
    assert!(recorded.len() >= 2, "a control link and one of the ring");
    let mut head = begin(&home, &plan, 1, TOKENS).expect("start the head");
    home.workers[0].says("ready").await.expect("the worker has its part");
    let desk = home.workers[0].address;
    for bytes in noise().iter().chain(&recorded) {
        let heard = shout(desk, bytes).await.expect("the worker cuts strangers off");
        // The device sends at most the handshake's reply, of a fixed size, which nobody without the key can
        // read.
        assert!(heard.len() < 256, "{} bytes for a stranger", heard.len());
    }
    let have = finish(&mut head).await.expect("the ring's answer");
    assert_eq!(have["written"], want["written"]);
    let again = bench(&home, &plan, 1, TOKENS).await.expect("and one after that");
    assert_eq!(again["written"], want["written"]);
    for answer in [&have, &again] {
        assert_eq!(answer["ring"]["recoveries"], 0, "{}", answer["ring"]);
        assert_eq!(answer["ring"]["refused"], 0, "{}", answer["ring"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_code_admits_nobody() {
    let said = guess().await.expect("a head that admits devices, and one that guesses");
    assert!(!said.joined, "the wrong code was taken");
    assert!(said.words.contains("code"), "{}", said.words);
    assert_eq!(said.pinned, 0, "nobody was pinned");
}
