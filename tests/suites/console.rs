//! The admin console in a real browser, against the real service with a database in a file.
//!
//! Screenshots of the pages are written to `console-screenshots` in the build folder.

#[path = "console/browser.rs"]
mod browser;
#[path = "console/quality.rs"]
mod quality;

use std::path::PathBuf;

use baton_cloud::access::{Actor, ClassCost, DeviceClassSettings, Role};
use baton_cloud::store::{Database, Expected, Store, testing};
use baton_e2e::admin::AdminSession;
use baton_e2e::demo::emulation::CLOUD;
use baton_e2e::http;
use baton_e2e::process::{CloudProcess, models_folder, program};
use reqwest::header;
use serde_json::{Value, json};

use crate::browser::{Browser, HANG, lacking};

const PASSWORD: &str = "correct horse battery";
const TAB: &str = "\u{e004}";
const ENTER: &str = "\u{e007}";

/// A service with an administrator `ada` and an editor `edna`.
struct World {
    cloud: CloudProcess,
    database: Database,
    _folder: tempfile::TempDir,
}

/// Returns whether there is a browser; if not, prints why.
fn browser_here() -> bool {
    match lacking() {
        None => true,
        Some(lack) => {
            println!("skipped: console: {lack}");
            false
        }
    }
}

impl World {
    async fn start() -> World {
        let folder = tempfile::tempdir().expect("make a folder");
        let path = folder.path().join("cloud.db");
        let database = Database::File(path.clone());
        let store = Store::open(&database).await.expect("a database");
        store.bootstrap("ada", PASSWORD, &Actor::cli()).await.expect("an administrator");
        store.add_user("edna", Role::Editor, PASSWORD, &Actor::cli()).await.expect("an editor");
        // This device is so slow that the relay helps, however slow this machine is.
        let cost = ClassCost { prefill_ms_per_token: 60.0, prefill_ms_per_token2: 0.0, decode_ms: 45.0 };
        let slow = DeviceClassSettings { label: "Slow".to_owned(), cost: Some(cost) };
        store.set_device_class("slow", &slow, Expected::Absent, &Actor::cli()).await.expect("a class");
        store.close().await;
        let model = models_folder().join("demo-cloud.gguf");
        let (path, mut options) = (path.display().to_string(), CLOUD.options());
        options.extend(["--quality-curves".into(), quality::curves(folder.path()).into_os_string()]);
        let cloud = CloudProcess::start_on(&model, &path, &options).await.expect("the cloud starts");
        World { cloud, database, _folder: folder }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.cloud.address())
    }

    /// Starts a browser in which `name` has logged in with the form.
    async fn browser(&self, name: &str) -> Browser {
        let browser = Browser::start().await;
        browser.client.goto(&self.url("/admin")).await.expect("open the console");
        browser.fill("#name", name).await;
        browser.fill("#password", PASSWORD).await;
        browser.click("button.main").await;
        browser.find("nav[aria-label=Console]").await;
        browser
    }

    /// Returns the API, logged in as `name`.
    async fn api(&self, name: &str) -> Api {
        Api(AdminSession::log_in(self.cloud.address(), name, PASSWORD).await.expect("log in"))
    }

    /// Asks for first tokens in the scene until it is at `version`; returns the r of the mask and L, as sent
    /// to the device.
    async fn assisted(&self, version: u64) -> (f64, u64) {
        let sentences: Vec<String> =
            (0..60).map(|at| format!("Item {at} costs {} coins.", at * 7 % 91)).collect();
        let body = || {
            json!({
                "protocol": 1, "request_id": uuid::Uuid::new_v4(), "scene": "doc-qa", "model": "default",
                "segments": [
                    { "role": "system", "text": "You answer from the document.", "refine": false },
                    { "role": "user", "text": sentences.join(" "), "refine": true },
                    { "role": "user", "text": "\n\nQuestion: What does item 7 cost?", "refine": false },
                ],
            })
        };
        let asked = async {
            loop {
                let reply =
                    http::client().post(self.url("/v1/assist")).json(&body()).send().await.expect("ask");
                let text = reply.text().await.expect("an answer");
                let data = |name: &str| -> Value {
                    let frame =
                        text.split("\n\n").find(|frame| frame.starts_with(&format!("event: {name}\n")));
                    let data =
                        frame.and_then(|frame| frame.lines().find_map(|line| line.strip_prefix("data: ")));
                    serde_json::from_str(data.unwrap_or_else(|| panic!("no {name} in {text}"))).expect("JSON")
                };
                let first = data("first");
                if first["scene_version"] == version {
                    return (
                        data("mask")["ratio"].as_f64().expect("r"),
                        first["assist_tokens"].as_u64().expect("L"),
                    );
                }
            }
        };
        tokio::time::timeout(HANG, asked).await.expect("the published version comes into force")
    }
}

/// The admin API as one user.
struct Api(AdminSession);

impl Api {
    async fn send(
        &self,
        method: reqwest::Method,
        path: &str,
        tag: Option<&str>,
        body: &Value,
    ) -> reqwest::Response {
        let mut request = self.0.request(method, path).json(body);
        if let Some(tag) = tag {
            request = request.header(header::IF_MATCH, tag);
        }
        request.send().await.expect("ask the API")
    }
}

/// Checks the ratio of a mask. The mask keeps whole sentences, so the share is at most r, and little less.
#[track_caller]
fn check_ratio(kept: f64, ratio: f64) {
    assert!(kept <= ratio + 1e-6 && kept > ratio - 0.05, "{kept} of {ratio}");
}

/// Returns the number in a summary that follows the text `before`.
fn figure(summary: &str, before: &str) -> f64 {
    let rest = summary.split(before).nth(1).unwrap_or_else(|| panic!("no `{before}` in `{summary}`"));
    let digits: String =
        rest.trim_start().chars().take_while(|c| c.is_ascii_digit() || ".,".contains(*c)).collect();
    digits.trim_end_matches([',', '.']).replace(',', "").parse().unwrap_or_else(|_| panic!("`{summary}`"))
}

fn pictures() -> PathBuf {
    let program = program("baton-cloud").expect("the service is built");
    let folder = program
        .parent()
        .and_then(|folder| folder.parent())
        .expect("a build folder")
        .join("console-screenshots");
    std::fs::create_dir_all(&folder).expect("make a folder");
    folder
}

#[tokio::test]
async fn a_setting_goes_from_the_form_to_the_next_request_and_back() {
    if !browser_here() {
        return;
    }
    let world = World::start().await;
    let browser = world.browser("ada").await;
    browser.client.goto(&world.url("/admin/scenes")).await.expect("open the scenes");
    browser.click("a[href='/admin/scenes/doc-qa']").await;

    // The prediction changes while r and L are typed, and agrees with the optimizer.
    let before = browser.text("#summary").await;
    browser.fill("#ratio", "0.5").await;
    browser.fill("#assist_tokens", "12").await;
    let moved = browser.until("#summary", |text| text.starts_with("r 0.5, L 12:")).await;
    assert_ne!(figure(&before, "gap "), figure(&moved, "gap "));
    let api = world.api("edna").await;
    let scene: Value =
        api.send(reqwest::Method::GET, "/scenes/doc-qa", None, &json!({})).await.json().await.expect("JSON");
    let mut settings = scene["published"].clone();
    (settings["ratio"], settings["assist_tokens"]) = (json!(0.5), json!(12));
    let body = json!({ "settings": settings });
    let predicted: Value = api
        .send(reqwest::Method::POST, "/scenes/doc-qa/predict", None, &body)
        .await
        .json()
        .await
        .expect("JSON");
    let gap = predicted["plan"]["predicted"]["gap_ms"].as_f64().expect("a gap");
    assert!((figure(&moved, "gap ") - gap).abs() <= 0.05, "{moved} is not {gap}");
    assert!(browser.text("#prediction h3").await.contains("TTFT_d over r"));

    // Draft, review, publish; the next request uses the new version.
    browser.click("#scene-form button.main").await;
    browser.until("h1", |text| text == "Publish version 2?").await;
    let review = browser.text("main").await;
    assert!(review.contains("0.25") && review.contains("0.5") && review.contains("automatic"), "{review}");
    browser.click("button.main").await;
    browser.until("[role=status]", |text| text.starts_with("Published.")).await;
    let (ratio, assist_tokens) = world.assisted(2).await;
    assert_eq!(assist_tokens, 12);
    check_ratio(ratio, 0.5);

    // Roll back, and confirm the question that the script asks.
    browser.client.goto(&world.url("/admin/scenes/doc-qa/versions/1")).await.expect("open a version");
    browser.click("form[data-confirm] button").await;
    browser.until("dialog[open] p", |text| text.contains("comes back into force")).await;
    browser.click("dialog[open] .danger").await;
    browser.until("[role=status]", |text| text.starts_with("Rolled back.")).await;
    let (ratio, _) = world.assisted(3).await;
    check_ratio(ratio, 0.25);

    audited(&world, &browser).await;
    browser.close().await;
}

/// Checks that the audit log names the actions, and finds a row that was altered directly in the database.
async fn audited(world: &World, browser: &Browser) {
    browser.client.goto(&world.url("/admin/audit")).await.expect("open the audit log");
    let log = browser.text("main").await;
    for action in ["scene.draft", "scene.publish", "scene.rollback", "user:ada", "scene/doc-qa", "Whole."] {
        assert!(log.contains(action), "{action}: {log}");
    }
    let sql = "DROP TRIGGER audit_log_is_immutable; UPDATE audit_log SET actor = 'user:eve' WHERE seq = 3;";
    testing::execute(&world.database, sql).await.expect("alter a row");
    browser.client.refresh().await.expect("look again");
    let state = browser.until("#audit-state", |text| text.starts_with("Not whole.")).await;
    assert!(state.contains("Row 3: the row was altered"), "{state}");
}

#[tokio::test]
async fn the_second_of_two_editors_is_told() {
    if !browser_here() {
        return;
    }
    let world = World::start().await;
    let (first, second) = (world.browser("ada").await, world.browser("edna").await);
    let api = world.api("edna").await;
    let known = api.send(reqwest::Method::GET, "/scenes/doc-qa", None, &json!({})).await;
    let tag = known.headers()[header::ETAG].to_str().expect("text").to_owned();
    let scene: Value = known.json().await.expect("JSON");
    for (browser, ratio) in [(&first, "0.5"), (&second, "0.75")] {
        browser.client.goto(&world.url("/admin/scenes/doc-qa")).await.expect("open the scene");
        browser.fill("#ratio", ratio).await;
    }
    first.click("#scene-form button.main").await;
    first.until("h1", |text| text == "Publish version 2?").await;
    second.click("#scene-form button.main").await;
    let told = second.until("[role=alert]", |text| text.starts_with("Somebody else was faster.")).await;
    assert!(
        told.contains("ada saved draft version 2") && told.contains("0.5") && told.contains("0.75"),
        "{told}"
    );
    let kept = second.find("#ratio").await.prop("value").await.expect("read").expect("a value");
    assert_eq!(kept, "0.75", "what was typed stays");
    // The API reports the same by its status.
    let body = json!({ "settings": scene["published"] });
    let reply = api.send(reqwest::Method::PUT, "/scenes/doc-qa/draft", Some(&tag), &body).await;
    assert_eq!(reply.status(), 412);
    let problem: Value = reply.json().await.expect("JSON");
    assert_eq!(problem["type"], "urn:baton:problem:stale");
    // Saving again overwrites on purpose.
    second.click("#scene-form button.main").await;
    second.until("h1", |text| text == "Publish version 3?").await;
    first.close().await;
    second.close().await;
}

#[tokio::test]
async fn everything_can_be_done_by_keyboard() {
    if !browser_here() {
        return;
    }
    let world = World::start().await;
    let browser = Browser::start().await;
    browser.client.goto(&world.url("/admin")).await.expect("open the console");
    // The name field has the focus; password field and button follow.
    browser.find("#name:focus").await;
    browser.keys(&format!("edna{TAB}")).await;
    browser.keys(&format!("{PASSWORD}{TAB}")).await;
    browser.keys(ENTER).await;
    browser.find("nav[aria-label=Console]").await;

    browser.client.goto(&world.url("/admin/scenes/doc-qa")).await.expect("open the scene");
    browser.find("#summary").await;
    browser.keys(TAB).await;
    let focus =
        "return document.activeElement.className + getComputedStyle(document.activeElement).outlineStyle";
    assert_eq!(browser.run(focus).await, "skipsolid", "the way around the links comes first, and is seen");
    browser.keys(ENTER).await;
    assert_eq!(browser.run("return document.activeElement.id").await, "main");
    // Go to r, without a pointer.
    tab_to(&browser, "ratio").await;
    let all = "document.activeElement.select(); return true";
    browser.run(all).await;
    browser.keys("0.4").await;
    browser.until("#summary", |text| text.starts_with("r 0.4,")).await;
    browser.keys(ENTER).await;
    browser.until("h1", |text| text == "Publish version 2?").await;
    tab_to(&browser, "note").await;
    browser.keys(&format!("by keyboard{ENTER}")).await;
    browser.until("[role=status]", |text| text.starts_with("Published.")).await;
    // The numbers of a chart are in a table that opens by keyboard.
    browser.run("document.querySelector('#prediction figure summary').focus(); return true").await;
    browser.keys(ENTER).await;
    let rows = browser
        .run("return document.querySelectorAll('#prediction figure details[open] tbody tr').length")
        .await;
    assert!(rows.as_u64() > Some(30), "{rows}");
    browser.close().await;
}

/// Presses Tab until the element has the focus.
async fn tab_to(browser: &Browser, id: &str) {
    for _ in 0..60 {
        if browser.run("return document.activeElement.id").await == id {
            return;
        }
        browser.keys(TAB).await;
    }
    panic!("no way to `{id}` by tabulator");
}

#[tokio::test]
async fn pages_fit_every_screen_and_name_every_field() {
    if !browser_here() {
        return;
    }
    let world = World::start().await;
    for _ in 0..3 {
        world.assisted(1).await;
    }
    let browser = world.browser("ada").await;
    let pages = [
        ("overview", "/admin"),
        ("requests", "/admin/requests"),
        ("history", "/admin/history"),
        ("playground", "/admin/playground"),
        ("scenes", "/admin/scenes"),
        ("scene", "/admin/scenes/doc-qa"),
        ("experiments", "/admin/experiments"),
        ("device-classes", "/admin/device-classes"),
        ("rollouts", "/admin/rollouts"),
        ("models", "/admin/models"),
        ("keys", "/admin/keys"),
        ("tenants", "/admin/tenants"),
        ("users", "/admin/users"),
        ("audit", "/admin/audit"),
        ("nowhere", "/admin/nope"),
        ("landing", "/"),
        ("docs", "/docs"),
    ];
    let folder = pictures();
    for (screen, width, height, dark) in [
        ("light", 1280, 900, false),
        ("dark", 1280, 900, true),
        ("phone", 390, 844, false),
        ("phone-dark", 390, 844, true),
    ] {
        browser.screen(width, height, dark).await;
        for (name, path) in pages {
            browser.client.goto(&world.url(path)).await.expect("open a page");
            browser.find("main h1").await;
            let wide = browser.run("return document.documentElement.scrollWidth").await;
            assert!(wide.as_u64() <= Some(u64::from(width)), "{name} on {screen} is {wide} wide");
            if width < 600 && ["audit", "docs"].contains(&name) {
                assert_eq!(browser.run(CUT).await, json!([]), "{name} on {screen} is cut");
            }
            let small = browser.run(TARGETS).await;
            assert_eq!(small, json!([]), "{name} on {screen}: too small to touch");
            let nameless = browser.run(NAMELESS).await;
            assert_eq!(nameless, json!([]), "{name} on {screen}");
            let picture = browser.picture(&folder, &format!("{name}-{screen}")).await;
            assert!(std::fs::metadata(picture).expect("a file").len() > 10_000, "{name} on {screen}");
        }
    }
    let errors = browser.run("return performance.getEntriesByType('resource').filter(r => !r.name.startsWith(location.origin)).map(r => r.name)").await;
    assert_eq!(errors, json!([]), "nothing is asked of another host");
    browser.close().await;
}

/// Finds buttons and fields that are under 24 pixels (the minimum of WCAG 2.2) in either direction.
const TARGETS: &str =
    "return [...document.querySelectorAll('button, input:not([type=hidden]), select, textarea')]
    .filter(e => e.offsetParent && !e.closest('label.check'))
    .filter(e => { const r = e.getBoundingClientRect(); return r.width < 24 || r.height < 24; })
    .map(e => e.outerHTML.slice(0, 80))";

/// Finds tables that are wider than the screen.
const CUT: &str =
    "return [...document.querySelectorAll('.wide')].filter(e => e.scrollWidth > e.clientWidth + 1)
    .map(e => e.getAttribute('aria-label'))";

/// Finds fields, links and buttons without a name for screen readers.
const NAMELESS: &str = "return [...document.querySelectorAll('a, button, input:not([type=hidden]), select, textarea, svg[role=img]')]
    .filter(e => !(e.labels && e.labels.length) && !e.getAttribute('aria-label') && !e.getAttribute('aria-labelledby')
        && !e.textContent.trim())
    .map(e => e.outerHTML.slice(0, 80))";

#[tokio::test]
async fn forms_do_everything_without_a_script() {
    if !browser_here() {
        return;
    }
    let world = World::start().await;
    let browser = Browser::start().await;
    browser.cdp("Emulation.setScriptExecutionDisabled", json!({ "value": true })).await;
    browser.client.goto(&world.url("/admin/scenes/doc-qa")).await.expect("open the console");
    browser.fill("#name", "ada").await;
    browser.fill("#password", PASSWORD).await;
    browser.click("button.main").await;
    // This is the page that was asked for before the log-in.
    browser.until("h1", |text| text == "doc-qa").await;
    browser.fill("#ratio", "0.6").await;
    browser.click("button.noscript").await;
    browser.until("#summary", |text| text.starts_with("r 0.6,")).await;
    browser.click("#scene-form button.main").await;
    browser.until("h1", |text| text == "Publish version 2?").await;
    browser.click("button.main").await;
    browser.until("[role=status]", |text| text.starts_with("Published.")).await;
    check_ratio(world.assisted(2).await.0, 0.6);
    browser.client.goto(&world.url("/admin/keys")).await.expect("open the keys");
    browser.click("form.panel button.main").await;
    browser.until("#secret", |text| text.starts_with("btk_")).await;
    browser.click("a.button").await;
    browser.click("button.danger").await;
    browser.until("h1", |text| text == "Revoke the key?").await;
    browser.click("main .danger").await;
    browser.until("[role=status]", |text| text.starts_with("The key is revoked.")).await;
    browser.close().await;
}
