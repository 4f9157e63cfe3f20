//! A headless Chromium of its own, driven over WebDriver.
//!
//! Always: the driver, and with it the browser and its profile folder, ends with its handle.

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
pub const HANG: Duration = Duration::from_secs(120);

/// A running browser.
pub struct Browser {
    /// Its one window.
    pub client: Client,
    webdriver: String,
    // The order matters: the driver ends the browser before the profile is removed.
    _driver: Child,
    _profile: tempfile::TempDir,
}

/// What keeps this machine from driving a browser.
pub fn lacking() -> Option<&'static str> {
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
    /// Starts one.
    pub async fn start() -> Browser {
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
        // Whatever else it says is read, so that it never waits for a reader.
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
        // A window that nobody looks at has no focus, and then no element of its page has.
        browser.cdp("Emulation.setFocusEmulationEnabled", json!({ "enabled": true })).await;
        browser
    }

    /// Ends it.
    pub async fn close(self) {
        self.client.clone().close().await.expect("close the browser");
    }

    /// Asks Chromium itself for something.
    pub async fn cdp(&self, command: &str, parameters: Value) -> Value {
        let session = self.client.session_id().await.expect("ask").expect("a session");
        let url = format!("{}/session/{session}/goog/cdp/execute", self.webdriver);
        let body = json!({ "cmd": command, "params": parameters });
        let reply = baton_e2e::http::client().post(url).json(&body).send().await.expect("ask chromedriver");
        assert!(reply.status().is_success(), "{command}: {:?}", reply.text().await);
        let mut value: Value = reply.json().await.expect("JSON");
        value["value"].take()
    }

    /// Shows pages as on a screen of this size, in light or dark.
    pub async fn screen(&self, width: u32, height: u32, dark: bool) {
        let phone = width < 600;
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": if phone { 2 } else { 1 }, "mobile": phone });
        self.cdp("Emulation.setDeviceMetricsOverride", size).await;
        let scheme = json!({ "name": "prefers-color-scheme", "value": if dark { "dark" } else { "light" } });
        self.cdp("Emulation.setEmulatedMedia", json!({ "features": [scheme] })).await;
    }

    /// Writes a picture of the whole page, and says where.
    pub async fn picture(&self, folder: &Path, name: &str) -> PathBuf {
        let taken = self.cdp("Page.captureScreenshot", json!({ "captureBeyondViewport": true })).await;
        let data = taken["data"].as_str().expect("a picture");
        let bytes = base64::engine::general_purpose::STANDARD.decode(data).expect("base64");
        let path = folder.join(format!("{name}.png"));
        std::fs::write(&path, bytes).expect("write a picture");
        path
    }

    /// The element of a CSS selector, once it is there.
    pub async fn find(&self, css: &str) -> Element {
        let found = self.client.wait().at_most(HANG).for_element(Locator::Css(css)).await;
        match found {
            Ok(found) => found,
            Err(err) => panic!("no `{css}`: {err}; the page: {}", self.page().await),
        }
    }

    /// What an element shows, as soon as the page has it (a click returns before the next page is there).
    pub async fn text(&self, css: &str) -> String {
        self.until(css, |_| true).await
    }

    /// The whole page's text, to tell what was there instead.
    async fn page(&self) -> String {
        match self.client.find(Locator::Css("body")).await {
            Ok(body) => body.text().await.unwrap_or_else(|err| err.to_string()),
            Err(err) => err.to_string(),
        }
    }

    /// Waits until an element shows a text that `fits`, and says it.
    pub async fn until(&self, css: &str, fits: impl Fn(&str) -> bool) -> String {
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

    /// Types a value in the place of a field's.
    pub async fn fill(&self, css: &str, value: &str) {
        let field = self.find(css).await;
        field.clear().await.expect("empty a field");
        field.send_keys(value).await.expect("type");
    }

    /// Clicks, where it is scrolled to.
    pub async fn click(&self, css: &str) {
        self.find(css).await.click().await.expect("click");
    }

    /// The value of a script's `return`.
    pub async fn run(&self, script: &str) -> Value {
        self.client.execute(script, Vec::new()).await.expect("run a script")
    }

    /// Types keys where the focus is.
    pub async fn keys(&self, keys: &str) {
        self.client.active_element().await.expect("a focus").send_keys(keys).await.expect("type");
    }
}
