//! `baton model pull` against a hub and a package index that break: the program is killed at random bytes,
//! the line is cut, files change, digests are wrong. What is in the store at the end has the promised bytes.

#[path = "pull/place.rs"]
mod place;
#[path = "pull/server.rs"]
mod server;
#[path = "pull/sources.rs"]
mod sources;

use std::sync::Arc;

use baton_device::models::CHUNK;
use baton_kernels_cpu::Format;
use baton_random::SplitMix64;
use baton_synthetic::SyntheticModel;
use place::{Place, end, len, run, start, until};
use serde_json::{Value, json};
use server::{Limit, Page, Served, Server};
use sha2::{Digest, Sha256};

/// The repository of most tests, its file, and the name of the model in the store.
const REPO: &str = "ann/tiny-GGUF";
const FILE: &str = "tiny-F32.gguf";
const NAME: &str = "tiny-f32";
const KILLS: usize = 20;

/// Returns a model of about 30 MB, which is several chunks.
fn model(seed: u64) -> Arc<Vec<u8>> {
    let shape = SyntheticModel { n_layers: 12, ..SyntheticModel::small("llama", Format::F32, seed) };
    let bytes = shape.to_gguf().expect("the shape fits its format");
    assert!(bytes.len() as u64 > 5 * CHUNK, "{} bytes are too few chunks", bytes.len());
    Arc::new(bytes)
}

fn sha256(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the entry of a file in a hub's list.
fn listed(path: &str, bytes: &[u8], digest: Option<String>) -> Value {
    let lfs = digest.map(|oid| json!({ "oid": oid, "size": bytes.len(), "pointerSize": 134 }));
    json!({ "type": "file", "path": path, "oid": "0", "size": bytes.len(), "lfs": lfs })
}

/// Makes the server a hub with one repository of these files.
fn play_hub(server: &Server, files: &[(&str, &Served)], entries: &[Value]) {
    let list = Page::Text("application/json", json!(entries).to_string());
    server.serve(&format!("/api/models/{REPO}/tree/main"), list);
    for (file, served) in files {
        // As a hub does it, the file is at the address of a store.
        let place = format!("/store/{file}");
        server.serve(
            &format!("/{REPO}/resolve/main/{file}"),
            Page::Redirect(format!("{}{place}", server.other_url())),
        );
        server.serve(&place, Page::File((*served).clone()));
    }
}

/// Starts a hub with one model.
async fn hub(bytes: &Arc<Vec<u8>>) -> Server {
    let server = Server::start().await;
    play_hub(&server, &[(FILE, &Served::new(bytes))], &[listed(FILE, bytes, Some(sha256(bytes)))]);
    server
}

fn source() -> String {
    format!("hf:{REPO}")
}

/// Checks that the store has exactly these bytes, under this name, and nothing that was begun.
#[track_caller]
fn check_kept(place: &Place, bytes: &[u8]) {
    let path = place.models().join(NAME).join(FILE);
    let found = std::fs::read(&path).unwrap_or_else(|err| panic!("read `{}`: {err}", path.display()));
    assert!(found == bytes, "the bytes are not those of the hub");
    let partial: Vec<_> = std::fs::read_dir(place.models().join(".partial")).expect("list").collect();
    assert!(partial.is_empty(), "left: {partial:?}");
}

#[tokio::test]
async fn a_program_killed_at_random_bytes_reads_at_most_one_chunk_again() {
    let (bytes, place) = (model(1), Place::new());
    let server = hub(&bytes).await;
    let (whole, mut random) = (bytes.len() as u64, SplitMix64::new(4));
    let mut killed_at: Vec<u64> = Vec::new();
    for kill in 0..KILLS {
        let step = random.below(2 * bytes.len() / KILLS) as u64;
        let at = match killed_at.last() {
            None => 1,
            Some(_) if kill + 1 == KILLS => whole - 1,
            Some(before) => (before + step).min(whole - 1),
        };
        server.limit(Limit::Hold(at));
        let mut child = start(place.pull(&source(), &["--hub", &server.url()]));
        let part = place.part(NAME, FILE);
        until("the bytes are written", || server.asked().len() > kill && len(&part) >= at).await;
        child.kill().await.expect("kill the program");
        killed_at.push(at);
    }
    server.limit(Limit::None);
    let ended = run(place.pull(&source(), &["--hub", &server.url()])).await.good();
    assert_eq!(ended.last()["files"][0]["sha256"], sha256(&bytes));
    check_kept(&place, &bytes);
    let begun: Vec<u64> = server.asked().iter().map(|asked| asked.from.unwrap_or(0)).collect();
    assert_eq!(begun.len(), KILLS + 1, "one request for each start");
    for (kill, (at, from)) in killed_at.iter().zip(&begun[1..]).enumerate() {
        assert!(from <= at && at - from <= CHUNK, "kill {kill} at {at}: read again from {from}");
    }
    assert!(server.asked()[1..].iter().all(|asked| asked.from.is_none() == asked.if_range.is_none()));
}

#[tokio::test]
async fn an_interrupt_leaves_every_byte_and_says_how_to_go_on() {
    let (bytes, place) = (model(1), Place::new());
    let server = hub(&bytes).await;
    let at = bytes.len() as u64 / 2 + 123;
    server.limit(Limit::Hold(at));
    let child = start(place.baton(&["model", "pull", &source(), "--hub", &server.url()]));
    let part = place.part(NAME, FILE);
    until("the bytes are written", || len(&part) >= at).await;
    let pid = child.id().expect("it runs").to_string();
    let sent = std::process::Command::new("kill").args(["-INT", &pid]).status().expect("run kill");
    assert!(sent.success());
    let ended = end(child).await;
    assert_eq!(ended.status.code(), Some(130), "{ended:?}");
    assert!(ended.stderr.contains("stopped at 50 %: the same command goes on from there"), "{ended:?}");
    let listed = place.model(&["list"]).await;
    let want = json!([{ "name": NAME, "bytes": at, "of": bytes.len() }]);
    assert_eq!((&listed["models"], &listed["begun"]), (&json!([]), &want));
    server.limit(Limit::None);
    let ended = run(place.pull(&source(), &["--hub", &server.url()])).await.good();
    assert!(ended.notes().contains("goes on at"), "{}", ended.notes());
    assert_eq!(server.asked()[1].from, Some(at), "no byte is read again");
    check_kept(&place, &bytes);
}

#[tokio::test]
async fn a_server_that_cannot_go_on_is_read_from_the_beginning() {
    let (bytes, place) = (model(2), Place::new());
    let server = hub(&bytes).await;
    let old = Served { ranges: false, ..Served::new(&bytes) };
    play_hub(&server, &[(FILE, &old)], &[listed(FILE, &bytes, Some(sha256(&bytes)))]);
    server.limit(Limit::Hold(2 * CHUNK + 5));
    let mut child = start(place.pull(&source(), &["--hub", &server.url()]));
    until("two chunks are there", || len(&place.part(NAME, FILE)) > 2 * CHUNK).await;
    child.kill().await.expect("kill the program");
    server.limit(Limit::None);
    let ended = run(place.pull(&source(), &["--hub", &server.url()])).await.good();
    assert!(ended.notes().contains("is read from its beginning"), "{}", ended.notes());
    assert_eq!(server.asked()[1].from, Some(2 * CHUNK));
    check_kept(&place, &bytes);
}

#[tokio::test]
async fn a_file_that_changed_is_never_mixed_with_what_it_was() {
    let (before, after) = (model(3), model(4));
    // With a digest in the hub's list, without one, and with a tag that says nothing about bytes.
    for (digests, etags) in
        [(true, ["\"1\"", "\"2\""]), (false, ["\"1\"", "\"2\""]), (false, ["W/\"1\"", "W/\"1\""])]
    {
        let (place, server) = (Place::new(), Server::start().await);
        let play = |bytes: &Arc<Vec<u8>>, etag: &str| {
            let served = Served { etag: Some(etag.to_owned()), ..Served::new(bytes) };
            let digest = digests.then(|| sha256(bytes));
            play_hub(&server, &[(FILE, &served)], &[listed(FILE, bytes, digest)]);
        };
        play(&before, etags[0]);
        server.limit(Limit::Hold(CHUNK + 5));
        let mut child = start(place.pull(&source(), &["--hub", &server.url()]));
        until("a chunk is there", || len(&place.part(NAME, FILE)) > CHUNK).await;
        child.kill().await.expect("kill the program");
        play(&after, etags[1]);
        server.limit(Limit::None);
        run(place.pull(&source(), &["--hub", &server.url()])).await.good();
        check_kept(&place, &after);
        // Pulled again, it is there; changed at the hub, it is replaced as a whole.
        let again = run(place.pull(&source(), &["--hub", &server.url()])).await.good();
        assert_eq!(again.last()["was_there"], true);
        if digests {
            play(&before, etags[0]);
            run(place.pull(&source(), &["--hub", &server.url()])).await.good();
            check_kept(&place, &before);
        }
    }
}

#[tokio::test]
async fn a_wrong_digest_is_no_model_and_leaves_no_bytes() {
    let (bytes, place) = (model(5), Place::new());
    let server = hub(&bytes).await;
    let promised = sha256(b"something else");
    play_hub(&server, &[(FILE, &Served::new(&bytes))], &[listed(FILE, &bytes, Some(promised.clone()))]);
    let words = ["has not the bytes that were promised", promised.as_str(), &sha256(&bytes)];
    run(place.pull(&source(), &["--hub", &server.url()])).await.failed("checksum", &words);
    let listed_now = place.model(&["list"]).await;
    assert_eq!((&listed_now["models"], &listed_now["begun"]), (&json!([]), &json!([])));
    assert_eq!(len(&place.part(NAME, FILE)), 0);
    // A bit that falls over on this disk is found too, also in bytes of an earlier run.
    play_hub(&server, &[(FILE, &Served::new(&bytes))], &[listed(FILE, &bytes, Some(sha256(&bytes)))]);
    server.limit(Limit::Hold(CHUNK + 5));
    let mut child = start(place.pull(&source(), &["--hub", &server.url()]));
    until("a chunk is there", || len(&place.part(NAME, FILE)) > CHUNK).await;
    child.kill().await.expect("kill the program");
    let mut part = std::fs::read(place.part(NAME, FILE)).expect("read the part");
    part[1_000_000] ^= 1;
    std::fs::write(place.part(NAME, FILE), part).expect("write the part");
    server.limit(Limit::None);
    run(place.pull(&source(), &["--hub", &server.url()])).await.failed("checksum", &[]);
    run(place.pull(&source(), &["--hub", &server.url()])).await.good();
    check_kept(&place, &bytes);
}

#[tokio::test]
async fn a_line_that_is_cut_again_and_again_gives_the_whole_file() {
    let (bytes, place) = (model(6), Place::new());
    let server = hub(&bytes).await;
    server.limit(Limit::Cut(bytes.len() as u64 / 7 + 1));
    run(place.pull(&source(), &["--hub", &server.url()])).await.good();
    check_kept(&place, &bytes);
    let begun: Vec<u64> = server.asked().iter().map(|asked| asked.from.unwrap_or(0)).collect();
    let step = bytes.len() as u64 / 7 + 1;
    assert_eq!(begun, (0..7).map(|cut| cut * step).collect::<Vec<_>>(), "no byte is read twice");
}

#[tokio::test]
async fn a_line_that_brings_nothing_is_given_up_with_what_is_there() {
    let (bytes, place) = (model(7), Place::new());
    let server = hub(&bytes).await;
    server.limit(Limit::Hold(CHUNK + 5));
    let mut child = start(place.pull(&source(), &["--hub", &server.url()]));
    until("a chunk is there", || len(&place.part(NAME, FILE)) > CHUNK).await;
    child.kill().await.expect("kill the program");
    server.limit(Limit::Cut(0));
    let words = ["the same command goes on from there", "localhost"];
    run(place.pull(&source(), &["--hub", &server.url()])).await.failed("cut", &words);
    server.limit(Limit::None);
    run(place.pull(&source(), &["--hub", &server.url()])).await.good();
    check_kept(&place, &bytes);
}

#[tokio::test]
async fn of_two_pulls_at_once_the_second_waits_and_downloads_nothing() {
    let (bytes, place) = (model(8), Place::new());
    let server = hub(&bytes).await;
    server.limit(Limit::Hold(CHUNK + 5));
    let first = start(place.pull(&source(), &["--hub", &server.url()]));
    until("a chunk is there", || len(&place.part(NAME, FILE)) > CHUNK).await;
    let mut second = place.pull(&source(), &["--hub", &server.url()]);
    let waits = place.path("second.jsonl");
    second.stdout(std::fs::File::create(&waits).expect("make a file"));
    let mut second = baton_e2e::process::Running::start(&mut second).expect("the program starts");
    let said = || std::fs::read_to_string(&waits).unwrap_or_default();
    until("the second one waits", || said().contains("waiting until it has ended")).await;
    let busy = run(place.baton(&["model", "rm", NAME])).await;
    assert!(!busy.status.success() && busy.stderr.contains("another program is at work"), "{busy:?}");
    server.limit(Limit::None);
    end(first).await.good();
    assert!(second.wait().await.expect("it ends").success(), "{}", said());
    assert!(said().contains("\"was_there\":true"), "{}", said());
    assert_eq!(server.asked().len(), 1, "one download for both");
    check_kept(&place, &bytes);
}
