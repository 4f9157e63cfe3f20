//! The chat page of `baton serve` in a real browser, against the real agent.
//!
//! Screenshots are written to `page-screenshots` in the build folder.

#[path = "console/browser.rs"]
#[allow(dead_code, reason = "the suite `console` uses more of it")]
mod browser;

use std::path::PathBuf;

use baton_e2e::http::client;
use baton_e2e::process::{AgentProcess, CloudProcess, cpu_program, models_folder, program};
use serde_json::json;
use tokio::process::Command;

use crate::browser::{Browser, lacking};

/// A running agent with its settings.
struct World {
    agent: AgentProcess,
    folder: tempfile::TempDir,
}

/// Returns whether there is a browser; if not, prints why.
fn browser_here() -> bool {
    match lacking() {
        None => true,
        Some(lack) => {
            println!("skipped: page: {lack}");
            false
        }
    }
}

/// Makes the folder of the screenshots.
fn pictures() -> PathBuf {
    let target =
        program("baton").expect("it is built").ancestors().nth(2).expect("a build folder").to_owned();
    let folder = target.join("page-screenshots");
    std::fs::create_dir_all(&folder).expect("make a folder");
    folder
}

impl World {
    async fn start(options: &[&str]) -> World {
        Self::start_with(&[&["--no-cloud"], options].concat()).await
    }

    async fn start_with(options: &[&str]) -> World {
        let folder = tempfile::tempdir().expect("make a folder");
        let mut command = Command::from(cpu_program("baton").expect("the program is built"));
        command.args(["serve", "--listen", "127.0.0.1:0"]).args(options);
        command.arg("--model").arg(models_folder().join("demo-device.gguf"));
        command.arg("--config-dir").arg(folder.path()).arg("--models-dir").arg(folder.path().join("models"));
        let agent = AgentProcess::start(&mut command).await.expect("the agent starts");
        World { agent, folder }
    }

    /// Opens the page.
    async fn page(&self) -> Browser {
        let browser = Browser::start().await;
        browser.client.goto(self.agent.url()).await.expect("open the page");
        browser.until("#model", |text| !text.is_empty()).await;
        browser
            .run("document.getElementById('tokens').value = 24; document.getElementById('tokens').onchange()")
            .await;
        browser
    }
}

/// Asks, and waits for the end of the answer; returns its text.
async fn ask(browser: &Browser, question: &str) -> String {
    let answers = browser.run("return document.querySelectorAll('#messages li.assistant').length").await;
    browser.fill("#question", question).await;
    browser.click("#send").await;
    let nth = answers.as_u64().expect("a number") * 2 + 2;
    let own = format!("#messages li:nth-child({nth})");
    browser.until(&format!("{own} .facts"), |text| text.contains("in all")).await;
    browser.text(&format!("{own} .text")).await
}

#[tokio::test]
async fn an_answer_is_written_timed_kept_and_written_again() {
    if !browser_here() {
        return;
    }
    let world = World::start(&[]).await;
    let browser = world.page().await;
    assert!(browser.text("#model").await.contains("in memory"));
    let text = ask(&browser, "What is a river?").await;
    assert!(!text.trim().is_empty());
    let facts = browser.text("#messages li:nth-child(2) .facts").await;
    assert!(facts.contains("this device, ") && facts.contains("tokens/s"), "{facts}");
    let bars = browser.run("return document.querySelectorAll('.timeline rect.device').length").await;
    assert!(bars.as_u64().is_some_and(|bars| bars > 1), "{bars}");
    ask(&browser, "And a lake?").await;
    browser.screen(1280, 900, false).await;
    browser.picture(&pictures(), "answer-light").await;
    // The conversation is there after a reload, is found by its text, and goes on.
    browser.client.refresh().await.expect("reload");
    browser.fill("#search", "no such words").await;
    browser.until("#conversations", str::is_empty).await;
    browser.fill("#search", "LAKE").await;
    browser.click("#conversations .title").await;
    assert_eq!(browser.text("#messages li:nth-child(2) .text").await, text);
    // The same question gives the same answer.
    let last = browser.text("#messages li:nth-child(4) .text").await;
    browser.click("#messages li:nth-child(4) .facts button").await;
    browser.until("#messages li:nth-child(4) .facts", |text| text.contains("Regenerate")).await;
    assert_eq!(browser.text("#messages li:nth-child(4) .text").await, last);
    browser.close().await;
}

/// Returns how many questions and answers are shown.
async fn shown(browser: &Browser) -> serde_json::Value {
    browser.run("return document.querySelectorAll('#messages li').length").await
}

#[tokio::test]
async fn nothing_goes_without_a_question() {
    if !browser_here() {
        return;
    }
    let world = World::start(&[]).await;
    let browser = world.page().await;
    ask(&browser, "What is a river?").await;
    ask(&browser, "And a lake?").await;
    // An edit can be given up, and what was begun before it is there again.
    browser.fill("#question", "A draft").await;
    browser.click("#messages li:nth-child(1) .facts button").await;
    assert_eq!(shown(&browser).await, json!(4), "an edit takes nothing along yet");
    let question = "return document.getElementById('question').value";
    assert_eq!(browser.run(question).await, json!("What is a river?"));
    browser.screen(375, 740, true).await;
    browser.picture(&pictures(), "edit-phone-dark").await;
    browser.click("#cancel").await;
    assert_eq!(browser.run(question).await, json!("A draft"));
    // Also when it is asked.
    browser.click("#messages li:nth-child(1) .facts button").await;
    browser.fill("#question", "What is a sea?").await;
    browser.click("#send").await;
    let asked = browser.until("#sure-question", |text| text.contains("2 later messages go")).await;
    assert!(asked.contains("in place of the earlier question"), "{asked}");
    browser.picture(&pictures(), "sure-phone-dark").await;
    browser.click("#sure button[value=no]").await;
    assert_eq!(shown(&browser).await, json!(4));
    browser.click("#send").await;
    browser.click("#sure-yes").await;
    browser.until("#messages li:nth-child(2) .facts", |text| text.contains("in all")).await;
    assert_eq!(shown(&browser).await, json!(2));
    assert_eq!(browser.text("#messages li:nth-child(1) .text").await, "What is a sea?");
    assert_eq!(browser.run(question).await, json!("A draft"), "what was begun before the edit");
    // A conversation is deleted only if that is confirmed; Escape does not confirm.
    browser.screen(1280, 900, false).await;
    let gone = "#conversations button[title=Delete]";
    browser.click(gone).await;
    let asked = browser.until("#sure-question", |text| text.starts_with("Delete")).await;
    assert!(asked.contains("“What is a sea?”") && asked.contains("cannot be brought back"), "{asked}");
    browser.picture(&pictures(), "sure-light").await;
    browser.keys("\u{e00c}").await;
    browser.until("#conversations", |text| text.contains("What is a sea?")).await;
    browser.click(gone).await;
    browser.click("#sure-yes").await;
    browser.until("#conversations", str::is_empty).await;
    assert_eq!(browser.run("return localStorage.getItem('baton-conversations')").await, json!("[]"));
    browser.close().await;
}

#[tokio::test]
async fn a_page_that_is_loaded_again_keeps_what_was_written() {
    if !browser_here() {
        return;
    }
    let world = World::start(&["--emulate-decode-ms", "150"]).await;
    let browser = world.page().await;
    browser
        .run("document.getElementById('tokens').value = 2000; document.getElementById('tokens').onchange()")
        .await;
    browser.fill("#question", "Tell me everything.").await;
    browser.click("#send").await;
    let begun = browser.until("#messages li:nth-child(2) .text", |text| !text.is_empty()).await;
    browser.client.refresh().await.expect("load it again");
    browser.click("#conversations .title").await;
    let kept = browser.text("#messages li:nth-child(2) .text").await;
    assert!(kept.starts_with(begun.trim_end()), "{kept:?}");
    let said = browser.text("#messages li:nth-child(2) .error").await;
    assert_eq!(said, "The page was closed before the end.");
    // Another window keeps its conversation beside this one.
    browser
        .run(
            "const other = JSON.parse(localStorage.getItem('baton-conversations')); \
             other.push({ id: 'other', at: 0, messages: [{ role: 'user', text: 'Of another window' }] }); \
             localStorage.setItem('baton-conversations', JSON.stringify(other)); \
             document.getElementById('tokens').value = 3; document.getElementById('tokens').onchange()",
        )
        .await;
    browser.click("#new").await;
    ask(&browser, "And now?").await;
    let listed = browser.text("#conversations").await;
    for title in ["And now?", "Tell me everything.", "Of another window"] {
        assert!(listed.contains(title), "{listed}");
    }
    browser.close().await;
}

#[tokio::test]
async fn a_document_is_read_and_goes_before_the_question() {
    if !browser_here() {
        return;
    }
    let world = World::start(&[]).await;
    let browser = world.page().await;
    let path = world.folder.path().join("rivers.html");
    std::fs::write(&path, "<h1>Rivers</h1><script>hidden()</script><p>They are wet.</p>")
        .expect("write a page");
    browser.find("#files").await.send_keys(&path.display().to_string()).await.expect("choose a file");
    browser.until("#attached", |text| text.contains("rivers.html (")).await;
    ask(&browser, "What are they?").await;
    assert_eq!(browser.text("#messages li:nth-child(1) .documents").await, "With rivers.html");
    let kept = browser
        .run(
            "return JSON.parse(localStorage.getItem('baton-conversations'))[0].messages[0].documents[0].text",
        )
        .await;
    let kept = kept.as_str().expect("a text");
    assert!(kept.contains("They are wet.") && !kept.contains("hidden"), "{kept}");
    // What is no document is said to be none.
    let path = world.folder.path().join("noise.bin");
    std::fs::write(&path, b"\0\x01").expect("write a file");
    browser.find("#files").await.send_keys(&path.display().to_string()).await.expect("choose a file");
    browser.until("#said", |text| text.contains("noise.bin") && text.contains("byte 0 is zero")).await;
    browser.close().await;
}

#[tokio::test]
async fn what_was_sent_is_shown_with_its_placeholders() {
    if !browser_here() {
        return;
    }
    let cloud = CloudProcess::start(&models_folder().join("demo-cloud.gguf"), &[]).await.expect("it starts");
    let url = format!("http://{}", cloud.address());
    let world = World::start_with(&["--cloud", &url, "--yes", "--mode", "cloud"]).await;
    let browser = world.page().await;
    ask(&browser, "Write to ann.canary@example.com, please.").await;
    browser.click("#messages li:nth-child(2) .facts button:last-of-type").await;
    let shown =
        browser.until("#messages li:nth-child(2) .sent", |text| text.contains("stayed on this")).await;
    assert!(shown.contains("[EMAIL_1]") && shown.contains(&url), "{shown}");
    assert!(!shown.contains("ann.canary"), "{shown}");
    assert_eq!(browser.text("#messages li:nth-child(2) .sent mark").await, "[EMAIL_1]");
    for (width, dark, name) in [(1280, false, "sent-light"), (375, true, "sent-phone-dark")] {
        browser.screen(width, 800, dark).await;
        browser.picture(&pictures(), name).await;
    }
    let wide = browser.run("return document.documentElement.scrollWidth <= window.innerWidth").await;
    assert_eq!(wide, json!(true), "it fits a phone");
    browser.close().await;
    // Who does not know the key of a record gets none.
    for path in ["answers/1", "answers/", "answers/0123456789abcdef0123456789abcdef"] {
        let reply = client().get(format!("{}/{path}", world.agent.url())).send().await.expect("it replies");
        assert_eq!(reply.status(), 404, "{path}");
    }
}

#[tokio::test]
async fn an_answer_can_be_stopped() {
    if !browser_here() {
        return;
    }
    let world = World::start(&["--emulate-decode-ms", "150"]).await;
    let browser = world.page().await;
    browser
        .run("document.getElementById('tokens').value = 2000; document.getElementById('tokens').onchange()")
        .await;
    browser.fill("#question", "Tell me everything.").await;
    browser.click("#send").await;
    browser.until("#messages li:nth-child(2) .text", |text| !text.is_empty()).await;
    browser.click("#stop").await;
    browser.until("#messages li:nth-child(2) .error", |text| text == "Stopped.").await;
    // The place is free again.
    browser
        .run("document.getElementById('tokens').value = 3; document.getElementById('tokens').onchange()")
        .await;
    ask(&browser, "And now?").await;
    browser.close().await;
}

#[tokio::test]
async fn a_key_is_asked_for_and_a_phone_shows_everything() {
    if !browser_here() {
        return;
    }
    let world = World::start(&["--key", "a-key"]).await;
    let browser = Browser::start().await;
    browser.client.goto(world.agent.url()).await.expect("open the page");
    browser.until("#model", |text| text.contains("Set the key in the settings")).await;
    browser.screen(375, 740, true).await;
    browser.click("#open-settings").await;
    browser.fill("#key", "a-key").await;
    browser.fill("#tokens", "24").await;
    browser.until("#models", |text| text.contains("baton")).await;
    browser.picture(&pictures(), "settings-phone-dark").await;
    browser.click("#settings .main").await;
    browser.until("#model", |text| text.contains("in memory")).await;
    ask(&browser, "What is a river?").await;
    browser.picture(&pictures(), "answer-phone-dark").await;
    // A phone shows a page that is wider in a smaller scale: then this is the page's width.
    let width = browser.run("return innerWidth").await;
    assert_eq!(width, json!(375), "nothing is wider than a phone");
    browser.click("#open-list").await;
    browser.until("#conversations", |text| text.contains("What is a river?")).await;
    browser.picture(&pictures(), "list-phone-dark").await;
    browser.close().await;
}
