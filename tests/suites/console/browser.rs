//! A headless Chromium, driven over WebDriver.
//!
//! What always holds: the driver, the browser and its profile folder end with the handle.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use base64::Engine as _;
use fantoccini::elements::Element;
use fantoccini::{Client, ClientBuilder, Locator};
use hyper_util::client::legacy::connect::HttpConnector;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

/// A guard against hangs.
pub(crate) const HANG: Duration = Duration::from_secs(120);

/// A running browser.
pub(crate) struct Browser {
    /// The only window.
    pub client: Client,
    webdriver: String,
    // The order matters: the driver ends the browser before the profile is removed.
    _driver: Child,
    _profile: tempfile::TempDir,
}

/// Returns what this machine lacks to drive a browser.
pub(crate) fn lacking() -> Option<&'static str> {
    let found = |name: &str| {
        std::env::var_os("PATH")
            .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join(name).is_file()))
    };
    if !found("chromedriver") {
        return Some("no chromedriver (Debian's chromium-driver)");
    }
    let browsers = ["chromium", "chromium-browser", "google-chrome", "chrome"];
    (!browsers.into_iter().any(found)).then_some("no chromium (Debian's chromium)")
}

impl Browser {
    /// Starts a browser.
    pub(crate) async fn start() -> Browser {
        let profile = tempfile::tempdir().expect("make a folder");
        let mut driver = Command::new("chromedriver")
            .arg("--port=0")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("start chromedriver");
        let mut lines = BufReader::new(driver.stdout.take().expect("it has an output")).lines();
        let port = tokio::time::timeout(HANG, async {
            loop {
                let line = lines.next_line().await.expect("read").expect("chromedriver says its port");
                if let Some(port) = line.rsplit_once("successfully on port ") {
                    return port.1.trim_end_matches('.').to_owned();
                }
            }
        });
        let port = port.await.expect("chromedriver starts in time");
        // The rest of its output is read too, so that it never waits for a reader.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        let webdriver = format!("http://127.0.0.1:{port}");
        let arguments = [
            "--headless".to_owned(),
            "--no-sandbox".to_owned(),
            "--disable-dev-shm-usage".to_owned(),
            "--disable-gpu".to_owned(),
            "--disable-background-networking".to_owned(),
            "--window-size=1280,900".to_owned(),
            format!("--user-data-dir={}", profile.path().display()),
        ];
        let Value::Object(capabilities) = json!({ "goog:chromeOptions": { "args": arguments } }) else {
            unreachable!("an object was written")
        };
        let client = ClientBuilder::new(HttpConnector::new())
            .capabilities(capabilities)
            .connect(&webdriver)
            .await
            .expect("open a browser");
        let browser = Browser { client, webdriver, _driver: driver, _profile: profile };
        // A window that is not shown has no focus, and then no element of its page has it either.
        browser.cdp("Emulation.setFocusEmulationEnabled", json!({ "enabled": true })).await;
        browser
    }

    /// Ends the browser.
    pub(crate) async fn close(self) {
        self.client.clone().close().await.expect("close the browser");
    }

    /// Sends a command of the Chrome DevTools Protocol.
    pub(crate) async fn cdp(&self, command: &str, parameters: Value) -> Value {
        let session = self.client.session_id().await.expect("ask").expect("a session");
        let url = format!("{}/session/{session}/goog/cdp/execute", self.webdriver);
        let body = json!({ "cmd": command, "params": parameters });
        let reply = baton_e2e::http::client().post(url).json(&body).send().await.expect("ask chromedriver");
        assert!(reply.status().is_success(), "{command}: {:?}", reply.text().await);
        let mut value: Value = reply.json().await.expect("JSON");
        value["value"].take()
    }

    /// Emulates a screen of this size, in light or dark.
    pub(crate) async fn screen(&self, width: u32, height: u32, dark: bool) {
        let phone = width < 600;
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": if phone { 2 } else { 1 }, "mobile": phone });
        self.cdp("Emulation.setDeviceMetricsOverride", size).await;
        let scheme = json!({ "name": "prefers-color-scheme", "value": if dark { "dark" } else { "light" } });
        self.cdp("Emulation.setEmulatedMedia", json!({ "features": [scheme] })).await;
    }

    /// Writes a picture of the whole page; returns its path.
    pub(crate) async fn picture(&self, folder: &Path, name: &str) -> PathBuf {
        let taken = self.cdp("Page.captureScreenshot", json!({ "captureBeyondViewport": true })).await;
        let data = taken["data"].as_str().expect("a picture");
        let bytes = base64::engine::general_purpose::STANDARD.decode(data).expect("base64");
        let path = folder.join(format!("{name}.png"));
        std::fs::write(&path, bytes).expect("write a picture");
        path
    }

    /// Returns the element of a CSS selector, as soon as it exists.
    pub(crate) async fn find(&self, css: &str) -> Element {
        let found = self.client.wait().at_most(HANG).for_element(Locator::Css(css)).await;
        match found {
            Ok(found) => found,
            Err(err) => panic!("no `{css}`: {err}; the page: {}", self.page().await),
        }
    }

    /// Returns the text of an element, as soon as the page has it. A click returns before the next page is
    /// loaded.
    pub(crate) async fn text(&self, css: &str) -> String {
        self.until(css, |_| true).await
    }

    /// Returns the whole page's text, for error messages.
    async fn page(&self) -> String {
        match self.client.find(Locator::Css("body")).await {
            Ok(body) => body.text().await.unwrap_or_else(|err| err.to_string()),
            Err(err) => err.to_string(),
        }
    }

    /// Waits until an element shows a text that `fits`; returns the text.
    pub(crate) async fn until(&self, css: &str, fits: impl Fn(&str) -> bool) -> String {
        let shown = async {
            loop {
                if let Ok(found) = self.client.find(Locator::Css(css)).await
                    && let Ok(text) = found.text().await
                    && fits(&text)
                {
                    return text;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        match tokio::time::timeout(HANG, shown).await {
            Ok(text) => text,
            Err(_) => panic!("`{css}` does not show it; the page: {}", self.page().await),
        }
    }

    /// Replaces the value of a field by typing.
    pub(crate) async fn fill(&self, css: &str, value: &str) {
        let field = self.find(css).await;
        field.clear().await.expect("empty a field");
        field.send_keys(value).await.expect("type");
    }

    /// Scrolls to the element and clicks it.
    pub(crate) async fn click(&self, css: &str) {
        self.find(css).await.click().await.expect("click");
    }

    /// Runs a script; returns the value of its `return`.
    pub(crate) async fn run(&self, script: &str) -> Value {
        self.client.execute(script, Vec::new()).await.expect("run a script")
    }

    /// Types keys into the element with the focus.
    pub(crate) async fn keys(&self, keys: &str) {
        self.client.active_element().await.expect("a focus").send_keys(keys).await.expect("type");
    }
}
