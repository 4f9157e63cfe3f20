//! Tests pages of the console: they work as plain forms, and people who cannot see or point can use them.

use super::{Answer, Caller, World};

/// Returns the tags of a page: name and attributes.
fn tags(html: &str) -> Vec<(String, Vec<(String, String)>)> {
    let mut tags = Vec::new();
    for part in html.split('<').skip(1) {
        let Some(tag) = part.split('>').next() else { continue };
        let name: String = tag.chars().take_while(|c| !c.is_whitespace()).collect();
        let mut attributes = Vec::new();
        let mut rest = tag[name.len()..].trim_start();
        while !rest.is_empty() {
            let end = rest.find(['=', ' ', '\n']).unwrap_or(rest.len());
            let attribute = rest[..end].to_owned();
            rest = &rest[end..];
            let value = match rest.strip_prefix("=\"") {
                Some(quoted) => {
                    let end = quoted.find('"').expect("an attribute ends");
                    rest = &quoted[end + 1..];
                    quoted[..end].to_owned()
                }
                None => String::new(),
            };
            attributes.push((attribute, value));
            rest = rest.trim_start();
        }
        tags.push((name, attributes));
    }
    tags
}

fn attribute<'t>(tag: &'t (String, Vec<(String, String)>), name: &str) -> Option<&'t str> {
    tag.1.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
}

/// Checks the rules for every page.
#[track_caller]
pub(super) fn check_page(path: &str, answer: &Answer) {
    assert_eq!(answer.header("content-type"), "text/html; charset=utf-8", "{path}: {answer:?}");
    let tags = tags(&answer.body);
    let mut ids: Vec<&str> = tags.iter().filter_map(|tag| attribute(tag, "id")).collect();
    ids.sort_unstable();
    let twice: Vec<&&str> = ids.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| &pair[0]).collect();
    assert!(twice.is_empty(), "{path}: ids that stand twice: {twice:?}");
    let labelled: Vec<&str> =
        tags.iter().filter(|tag| tag.0 == "label").filter_map(|tag| attribute(tag, "for")).collect();
    for label in &labelled {
        assert!(ids.contains(label), "{path}: a label for `{label}`, which is not there");
    }
    let mut inside_label = false;
    for tag in &tags {
        match tag.0.as_str() {
            "label" => inside_label = true,
            "/label" => inside_label = false,
            "input" | "select" | "textarea" if attribute(tag, "type") != Some("hidden") => {
                let named = attribute(tag, "id").is_some_and(|id| labelled.contains(&id));
                assert!(
                    named || inside_label || attribute(tag, "aria-label").is_some(),
                    "{path}: no label: {tag:?}"
                );
            }
            "script" => assert!(
                attribute(tag, "src").is_some_and(|src| src.starts_with("/admin/assets/")),
                "{path}: {tag:?}"
            ),
            "style" => panic!("{path}: an inline style sheet"),
            _ => {}
        }
        for (name, value) in &tag.1 {
            assert!(name != "style" && !name.starts_with("on"), "{path}: inline {name}: {tag:?}");
            assert!(!value.contains("://"), "{path}: leads outside: {tag:?}");
        }
        if let Some(names) = attribute(tag, "aria-labelledby") {
            for name in names.split(' ') {
                assert!(ids.contains(&name), "{path}: named by `{name}`, which is not there");
            }
        }
    }
    let count = |name: &str| tags.iter().filter(|tag| tag.0 == name).count();
    assert_eq!((count("h1"), count("main"), count("title") >= 1), (1, 1, true), "{path}");
    let first_link = tags.iter().find(|tag| tag.0 == "a").and_then(|tag| attribute(tag, "href"));
    assert_eq!(first_link, Some("#main"), "{path}: the first link leads to the content");
    for tag in tags.iter().filter(|tag| tag.0 == "form" && attribute(tag, "method") == Some("post")) {
        assert!(
            attribute(tag, "action").is_some_and(|action| action.starts_with("/admin/")),
            "{path}: {tag:?}"
        );
    }
    // All forms except the log-in contain the token.
    let forms = tags.iter().filter(|tag| tag.0 == "form" && attribute(tag, "method") == Some("post")).count();
    let tokens = tags.iter().filter(|tag| attribute(tag, "name") == Some("csrf")).count();
    assert!(tokens == forms || path.starts_with("/admin/login"), "{path}: {forms} forms, {tokens} tokens");
}

pub(super) fn revision(page: &Answer, action: &str) -> String {
    let form =
        page.body.split(&format!("action=\"{action}\"")).nth(1).unwrap_or_else(|| panic!("no form {action}"));
    form.split("name=\"revision\" value=\"").nth(1).unwrap().split('"').next().unwrap().to_owned()
}

fn fields<'a>(revision: &'a str, changes: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let base = [
        ("revision", revision),
        ("ratio_mode", "manual"),
        ("ratio", "0.25"),
        ("assist_tokens_mode", "auto"),
        ("assist_tokens", ""),
        ("xi", "0.25"),
        ("assist_floor", "4"),
        ("assist_max", "4096"),
        ("tau_ms", "100"),
        ("tolerance", "0.02"),
        ("refine", "yes"),
        ("mode", "attention"),
        ("corrector", "cloud"),
        ("verify", "off"),
        ("system", "You answer from the document."),
        ("question_prefix", "\r\n\r\nQuestion: "),
        ("network", "wifi"),
        ("prompt_tokens", "4096"),
    ];
    let kept = base.into_iter().filter(|(name, _)| changes.iter().all(|(other, _)| other != name));
    kept.chain(changes.iter().copied()).collect()
}

#[tokio::test]
async fn every_page_can_be_used_by_everybody() {
    let world = World::new().await;
    check_page("/admin/login", &world.send("GET", "/admin/login", &[], "").await);
    let ada = world.log_in("ada").await;
    world
        .form(
            &ada,
            "/admin/device-classes",
            &[("id", "phone"), ("revision", "0"), ("prefill_ms_per_token", "2.5"), ("decode_ms", "45")],
        )
        .await;
    let page = world.get(&ada, "/admin/scenes/doc-qa").await;
    let tag = revision(&page, "/admin/scenes/doc-qa/draft");
    let saved = world.form(&ada, "/admin/scenes/doc-qa/draft", &fields(&tag, &[("ratio", "0.5")])).await;
    assert_eq!((saved.status, saved.header("location")), (303, "/admin/scenes/doc-qa/review"), "{saved:?}");
    for path in [
        "/admin",
        "/admin/requests",
        "/admin/history",
        "/admin/playground",
        "/admin/scenes",
        "/admin/new-scene",
        "/admin/scenes/doc-qa",
        "/admin/scenes/doc-qa/review",
        "/admin/scenes/doc-qa/versions/1",
        "/admin/experiments",
        "/admin/device-classes",
        "/admin/models",
        "/admin/rollouts",
        "/admin/tenants",
        "/admin/keys",
        "/admin/users",
        "/admin/audit",
        "/admin/scenes/nothing",
    ] {
        let answer = world.get(&ada, path).await;
        assert_eq!(answer.status, if path.ends_with("nothing") { 404 } else { 200 }, "{path}: {answer:?}");
        check_page(path, &answer);
    }
    let made = world.form(&ada, "/admin/keys", &[("tenant", "default"), ("scopes", "assist")]).await;
    check_page("a new key", &made);
    let asked =
        world.form(&ada, "/admin/scenes/doc-qa/rollback", &[("version", "1"), ("revision", "1")]).await;
    check_page("a question", &asked);
    assert!(asked.body.contains("name=\"confirmed\" value=\"yes\""), "{asked:?}");
}

#[tokio::test]
async fn a_viewer_is_shown_no_form_that_changes_something() {
    let world = World::new().await;
    let vera = world.log_in("vera").await;
    for path in
        ["/admin/scenes", "/admin/scenes/doc-qa", "/admin/device-classes", "/admin/tenants", "/admin/keys"]
    {
        let body = world.get(&vera, path).await.body;
        for button in ["Save", "Make the key", "Revoke", "New scene", "Publish"] {
            assert!(!body.contains(&format!(">{button}<")), "{path} shows {button}");
        }
    }
}

#[tokio::test]
async fn a_scene_is_published_and_rolled_back_by_forms_alone() {
    let world = World::new().await;
    let edna = world.log_in("edna").await;
    let page = world.get(&edna, "/admin/scenes/doc-qa").await;
    // The line breaks before `Question:` are kept by the form.
    assert!(
        page.body.contains("name=\"question_prefix\" rows=\"3\">\n\n\nQuestion: </textarea>"),
        "{}",
        page.body
    );
    let tag = revision(&page, "/admin/scenes/doc-qa/draft");
    world
        .form(&edna, "/admin/scenes/doc-qa/draft", &fields(&tag, &[("ratio", "0.5"), ("note", "why not")]))
        .await;
    let review = world.get(&edna, "/admin/scenes/doc-qa/review").await;
    assert!(review.body.contains("0.25") && review.body.contains("0.5") && review.body.contains("why not"));
    assert!(!review.body.contains("Between content and question"), "only r differs: {}", review.body);
    let tag = revision(&review, "/admin/scenes/doc-qa/publish");
    let published =
        world.form(&edna, "/admin/scenes/doc-qa/publish", &[("revision", &tag), ("note", "n")]).await;
    assert_eq!(published.header("location"), "/admin/scenes/doc-qa?done=published", "{published:?}");
    assert_eq!(world.store.scene("doc-qa").await.unwrap().settings.ratio, Some(0.5));
    assert!(world.get(&edna, "/admin/scenes/doc-qa?done=published").await.body.contains("Published."));
    let old = world.get(&edna, "/admin/scenes/doc-qa/versions/1").await;
    let tag = revision(&old, "/admin/scenes/doc-qa/rollback");
    let back = [("revision", tag.as_str()), ("version", "1"), ("confirmed", "yes")];
    let answer = world.form(&edna, "/admin/scenes/doc-qa/rollback", &back).await;
    assert_eq!(answer.header("location"), "/admin/scenes/doc-qa?done=rolled-back", "{answer:?}");
    assert_eq!(world.store.scene("doc-qa").await.unwrap().settings.ratio, Some(0.25));
}

#[tokio::test]
async fn the_second_editor_is_told_and_loses_nothing() {
    let world = World::new().await;
    let (edna, ada) = (world.log_in("edna").await, world.log_in("ada").await);
    let tag = revision(&world.get(&edna, "/admin/scenes/doc-qa").await, "/admin/scenes/doc-qa/draft");
    world.form(&edna, "/admin/scenes/doc-qa/draft", &fields(&tag, &[("ratio", "0.5")])).await;
    let mine = fields(&tag, &[("ratio", "0.75"), ("system", "My <own> text.")]);
    let told = world.form(&ada, "/admin/scenes/doc-qa/draft", &mine).await;
    assert_eq!(told.status, 412);
    check_page("a conflict", &told);
    assert!(
        told.body.contains("Somebody else was faster.") && told.body.contains("edna saved draft version 2")
    );
    assert!(
        told.body.contains("value=\"0.75\"") && told.body.contains("My &lt;own&gt; text.")
            || told.body.contains("My &#60;own&#62; text."),
        "{}",
        told.body
    );
    // The page has the newest revision, so saving again is intended.
    let tag = revision(&told, "/admin/scenes/doc-qa/draft");
    let saved = world.form(&ada, "/admin/scenes/doc-qa/draft", &fields(&tag, &[("ratio", "0.75")])).await;
    assert_eq!(saved.status, 303);
    // A revision that was not reviewed is not published either.
    let answer = world.form(&edna, "/admin/scenes/doc-qa/publish", &[("revision", "2")]).await;
    assert_eq!(answer.status, 412, "{answer:?}");
}

#[tokio::test]
async fn a_form_out_of_bounds_comes_back_as_it_was_typed() {
    let world = World::new().await;
    let edna = world.log_in("edna").await;
    let tag = revision(&world.get(&edna, "/admin/scenes/doc-qa").await, "/admin/scenes/doc-qa/draft");
    let answer = world.form(&edna, "/admin/scenes/doc-qa/draft", &fields(&tag, &[("tau_ms", "0")])).await;
    assert_eq!(answer.status, 422);
    check_page("an error", &answer);
    assert!(
        answer.body.contains("value=\"0\" aria-invalid=\"true\" aria-describedby=\"error-tau_ms\""),
        "{}",
        answer.body
    );
    assert!(answer.body.contains("must be 1 to 60000"));
}

#[tokio::test]
async fn a_preview_is_the_page_or_the_piece() {
    let world = World::new().await;
    let vera = world.log_in("vera").await;
    let summary = async |ratio: &str| {
        let page = world.form(&vera, "/admin/scenes/doc-qa/preview", &fields("1", &[("ratio", ratio)])).await;
        assert_eq!(page.status, 200, "{page:?}");
        check_page("a preview", &page);
        page.body.split("data-summary=\"").nth(1).unwrap().split('"').next().unwrap().to_owned()
    };
    let (small, large) = (summary("0.25").await, summary("0.5").await);
    assert!(small.starts_with("r 0.25, L ") && large.starts_with("r 0.5, L "), "{small} {large}");
    let body: Vec<String> = fields("1", &[("ratio", "0.5")])
        .iter()
        .map(|(name, value)| format!("{name}={}", super::encoded(value)))
        .collect();
    let body = format!("{}&csrf={}", body.join("&"), vera.csrf);
    let headers = [
        ("cookie", vera.cookie.as_str()),
        ("content-type", "application/x-www-form-urlencoded"),
        ("x-fragment", "prediction"),
    ];
    let piece = world.send("POST", "/admin/scenes/doc-qa/preview", &headers, &body).await;
    assert!(
        piece.body.trim_start().starts_with("<section id=\"prediction\"") && piece.body.contains(&large),
        "{piece:?}"
    );
    assert!(piece.body.contains("<svg") && piece.body.contains("Numbers of this chart"));
}

#[tokio::test]
async fn files_are_cached_for_good() {
    let world = World::new().await;
    let page = world.send("GET", "/admin/login", &[], "").await;
    let url = page
        .body
        .split("href=\"")
        .find(|part| part.contains("console.css"))
        .unwrap()
        .split('"')
        .next()
        .unwrap()
        .to_owned();
    let css = world.send("GET", &url, &[], "").await;
    assert_eq!((css.status, css.header("content-type")), (200, "text/css; charset=utf-8"));
    assert_eq!(css.header("cache-control"), "public, max-age=31536000, immutable");
    let again = world.send("GET", &url, &[("if-none-match", css.header("etag"))], "").await;
    assert_eq!((again.status, again.body.as_str()), (304, ""));
    let other = world.send("GET", &url.replace("/assets/", "/assets/0"), &[], "").await;
    assert_eq!(other.status, 404);
}

#[tokio::test]
async fn names_are_shown_as_they_are() {
    let world = World::new().await;
    let ada = world.log_in("ada").await;
    let label = "<script>alert(1)</script> & \"co\"";
    let answer = world
        .form(&ada, "/admin/tenants", &[("id", "t"), ("revision", "0"), ("weight", "3"), ("label", label)])
        .await;
    assert_eq!(answer.status, 303, "{answer:?}");
    for path in ["/admin/tenants", "/admin/audit"] {
        let page = world.get(&ada, path).await;
        check_page(path, &page);
        assert!(!page.body.contains("<script>alert"), "{path}");
    }
    let nobody = Caller { cookie: String::new(), csrf: String::new() };
    let answer = world.get(&nobody, "/admin/scenes?x=1").await;
    assert_eq!(answer.header("location"), "/admin/login?next=/admin/scenes%3Fx%3D1");
}

#[tokio::test]
async fn a_form_that_fails_keeps_what_was_typed() {
    let world = World::new().await;
    let ada = world.log_in("ada").await;
    let fails = async |path: &str, fields: &[(&str, &str)], kept: &[&str]| {
        let answer = world.form(&ada, path, fields).await;
        assert_eq!(answer.status, 422, "{path}: {answer:?}");
        check_page(path, &answer);
        for text in kept {
            assert!(answer.body.contains(text), "{path}: `{text}` is missing: {}", answer.body);
        }
    };
    let key = [("tenant", "default"), ("label", "ann's"), ("days", "4000"), ("scopes", "chat")];
    let kept = [
        "`Days until it ends` is 4000",
        "value=\"4000\"",
        "value=\"chat\" checked",
        "value=\"assist\">",
        "<option selected>default</option>",
    ];
    fails("/admin/keys", &key, &kept).await;
    let class = [
        ("id", "phone"),
        ("revision", "0"),
        ("label", "my phone"),
        ("prefill_ms_per_token", "2.5"),
        ("decode_ms", ""),
    ];
    let kept = ["`TPOT_d (ms)` is empty", "value=\"phone\"", "value=\"my phone\"", "value=\"2.5\""];
    fails("/admin/device-classes", &class, &kept).await;
    let tenant = [("id", "acme"), ("revision", "0"), ("weight", "5000"), ("label", "Acme Ltd")];
    fails("/admin/tenants", &tenant, &["`Weight` is 5000", "value=\"acme\"", "value=\"Acme Ltd\""]).await;
    let user = [("name", "zoe"), ("role", "editor"), ("password", "short-one")];
    fails("/admin/users", &user, &["value=\"zoe\"", "<option selected>editor</option>"]).await;
    let answer = world.form(&ada, "/admin/users", &user).await;
    assert!(!answer.body.contains("short-one"), "a password does not come back");
}

#[tokio::test]
async fn what_takes_access_away_is_asked_for_first() {
    let world = World::new().await;
    let ada = world.log_in("ada").await;
    let asks = async |path: &str, fields: &[(&str, &str)], title: &str| {
        let answer = world.form(&ada, path, fields).await;
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
        assert!(answer.body.contains(title), "{path}: {}", answer.body);
        let sure = [fields, &[("confirmed", "yes")]].concat();
        let answer = world.form(&ada, path, &sure).await;
        assert_eq!(answer.status, 303, "{path}: {answer:?}");
    };
    let tenant = [("id", "default"), ("revision", "1"), ("weight", "3"), ("disabled", "yes")];
    asks("/admin/tenants", &tenant, "Disable the tenant?").await;
    let user = [("revision", "1"), ("role", "editor"), ("password", "correct horse battery")];
    asks("/admin/users/edna", &user, "Change the user?").await;
    let user = [("revision", "2"), ("role", "editor"), ("disabled", "yes")];
    asks("/admin/users/edna", &user, "may not log in any more").await;
}

#[tokio::test]
async fn wrong_numbers_in_a_path_get_a_page_too() {
    let world = World::new().await;
    let ada = world.log_in("ada").await;
    for (path, status) in [("/admin/audit?before=abc", 400), ("/admin/scenes/doc-qa/versions/abc", 404)] {
        let answer = world.get(&ada, path).await;
        assert_eq!(answer.status, status, "{path}");
        check_page(path, &answer);
    }
}

#[tokio::test]
async fn a_form_that_is_sent_too_late_leads_back_to_its_page() {
    let world = World::new().await;
    let late = |referer: &'static str| {
        [
            ("origin", "http://console.example"),
            ("referer", referer),
            ("content-type", "application/x-www-form-urlencoded"),
        ]
    };
    let answer =
        world.send("POST", "/admin/keys", &late("http://console.example/admin/keys"), "label=x").await;
    assert_eq!((answer.status, answer.header("location")), (303, "/admin/login?next=/admin/keys"));
    let path = "/admin/keys/abc/revoke";
    let answer = world.send("POST", path, &late("http://console.example/admin/keys/abc/revoke"), "").await;
    assert_eq!((answer.status, answer.header("location")), (303, "/admin/login"), "no page stands there");
}
