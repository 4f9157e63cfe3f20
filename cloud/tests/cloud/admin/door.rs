//! Tests access to the console: roles, sessions, origins, tokens, headers.

use baton_cloud::access::{Actor, Role};
use baton_cloud::admin::rules::{self, Requirement};
use baton_cloud::store::{Database, now_ms, testing};

use super::{API, Caller, PASSWORD, World};
use crate::world::{by_hand, options};

/// Returns a path whose parameters name things that do not exist.
fn path(rule: &rules::Rule) -> String {
    let plain = rule.path.replace("{version}", "1").replace("{hash}", "0").replace("{id}", "nothing");
    plain.replace("{name}", "nobody")
}

async fn ask(world: &World, rule: &rules::Rule, caller: Option<&Caller>) -> super::Answer {
    let (cookie, csrf) = caller.map_or(("", ""), |caller| (caller.cookie.as_str(), caller.csrf.as_str()));
    let headers = [("cookie", cookie), ("x-csrf-token", csrf), ("content-type", "application/json")];
    world.send(rule.method, &path(rule), &headers, "{}").await
}

#[tokio::test]
async fn every_route_lets_in_exactly_its_roles() {
    let world = World::new().await;
    let roles = [(Role::Viewer, "vera"), (Role::Editor, "edna"), (Role::Admin, "ada")];
    let mut callers = Vec::new();
    for (_, name) in roles {
        callers.push(world.log_in(name).await);
    }
    for rule in rules::RULES {
        let answer = ask(&world, rule, None).await;
        let sent_away = if rule.path.starts_with(API) {
            answer.status == 401 && (!rule.path.ends_with("/session") || rule.method != "POST")
        } else {
            answer.status == 303 && answer.header("location").starts_with("/admin/login")
        };
        assert_eq!(sent_away, matches!(rule.need, Requirement::Role(_)), "{rule:?} for nobody: {answer:?}");
        for (at, (role, name)) in roles.into_iter().enumerate() {
            // Some of these routes end the session.
            if world.get(&callers[at], "/admin/scenes").await.status != 200 {
                callers[at] = world.log_in(name).await;
            }
            let caller = callers[at].clone();
            let answer = ask(&world, rule, Some(&caller)).await;
            let allowed = rules::allows(rule.need, Some(role));
            assert_eq!(answer.status != 403, allowed, "{rule:?} for {role}: {answer:?}");
            assert!(answer.status != 500 && answer.status != 405, "{rule:?} for {role}: {answer:?}");
        }
    }
}

#[tokio::test]
async fn nothing_answers_before_there_is_an_administrator() {
    let world = World::empty(false).await;
    for rule in rules::RULES.iter().filter(|rule| rule.need != Requirement::Nothing) {
        let answer = ask(&world, rule, None).await;
        assert_eq!(answer.status, 503, "{rule:?}");
        assert!(answer.body.contains("run `baton-cloud bootstrap`"), "{rule:?}: {answer:?}");
    }
    world.store.bootstrap("ada", PASSWORD, &Actor::cli()).await.unwrap();
    assert_eq!(world.send("GET", "/admin/login", &[], "").await.status, 200);
}

#[tokio::test]
async fn a_stranger_sends_no_more_than_a_name_and_a_password() {
    let world = World::new().await;
    let long = format!("name=ada&password={}", "a".repeat(20_000));
    let form = ("content-type", "application/x-www-form-urlencoded");
    let answer = world.send("POST", "/admin/login", &[form], &long).await;
    assert_eq!(answer.status, 413, "{answer:?}");
    let json = format!(r#"{{"name":"ada","password":"{}"}}"#, "a".repeat(20_000));
    let kind = ("content-type", "application/json");
    let answer = world.send("POST", &format!("{API}/session"), &[kind], &json).await;
    assert_eq!(answer.status, 413, "{answer:?}");
    // A person who has logged in may send longer texts, but not thousands of fields and values.
    let ada = world.log_in("ada").await;
    let headers = [("cookie", ada.cookie.as_str()), ("x-csrf-token", ada.csrf.as_str()), form];
    let answer = world.send("POST", "/admin/tenants", &headers, &"a&".repeat(100_000)).await;
    assert_eq!(answer.status, 413, "{answer:?}");
    let headers = [("cookie", ada.cookie.as_str()), ("x-csrf-token", ada.csrf.as_str()), kind];
    let many = format!("[{}]", "[],".repeat(100_000));
    let answer = world.send("POST", &format!("{API}/keys"), &headers, &many).await;
    assert!(answer.status == 400 && answer.body.contains("values and fields"), "{answer:?}");
}

#[tokio::test]
async fn a_change_needs_the_token_of_its_session() {
    let world = World::new().await;
    let (mine, other) = (world.log_in("ada").await, world.log_in("ada").await);
    let send = async |csrf: &str, header: bool| {
        let (name, kind, body) = if header {
            ("x-csrf-token", "application/json", "{}".to_owned())
        } else {
            ("x-other", "application/x-www-form-urlencoded", format!("csrf={csrf}&id=a&weight=1&revision=0"))
        };
        let headers = [("cookie", mine.cookie.as_str()), (name, csrf), ("content-type", kind)];
        let path = if header { format!("{API}/keys") } else { "/admin/tenants".to_owned() };
        world.send("POST", &path, &headers, &body).await.status
    };
    for wrong in ["", "x", &other.csrf, &format!("{}x", mine.csrf)] {
        assert_eq!((send(wrong, true).await, send(wrong, false).await), (403, 403), "{wrong}");
    }
    assert_eq!((send(&mine.csrf, true).await, send(&mine.csrf, false).await), (400, 303));
}

#[tokio::test]
async fn other_sites_are_refused() {
    let world = World::new().await;
    let mine = world.log_in("ada").await;
    let send = async |name: &str, value: &str| {
        let headers = [
            ("cookie", mine.cookie.as_str()),
            ("x-csrf-token", mine.csrf.as_str()),
            ("content-type", "application/json"),
            (name, value),
        ];
        world.send("POST", &format!("{API}/keys"), &headers, "{}").await.status
    };
    for origin in ["https://evil.example", "null", "http://console.example.evil", "http://console.example:81"]
    {
        assert_eq!(send("origin", origin).await, 403, "{origin}");
    }
    assert_eq!(send("sec-fetch-site", "cross-site").await, 403);
    assert_eq!(send("origin", "http://console.example").await, 400, "the body is looked at");
    // Another site may not log anybody in either.
    let headers = [("origin", "https://evil.example"), ("content-type", "application/x-www-form-urlencoded")];
    let answer = world.send("POST", "/admin/login", &headers, &format!("name=ada&password={PASSWORD}")).await;
    assert_eq!((answer.status, answer.cookie().as_str()), (403, ""));
}

#[tokio::test]
async fn who_is_locked_out_by_strangers_gets_in_with_a_code_of_the_command_line() {
    let folder = tempfile::tempdir().unwrap();
    let database = Database::File(folder.path().join("cloud.db"));
    let (service, host) = by_hand(options());
    let world = World::on(&database, service, Some(host), false).await.with_users().await;
    // As if fifty addresses had tried two passwords each.
    let failed = format!(
        "INSERT INTO login_failures (subject, at_ms) WITH RECURSIVE n(i) AS \
         (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100) SELECT 'name ada', {} FROM n",
        now_ms()
    );
    testing::execute(&database, &failed).await.unwrap();
    let form = ("content-type", "application/x-www-form-urlencoded");
    let password = super::encoded(PASSWORD);
    let send = async |code: &str| {
        let body = format!("name=ada&password={password}&code={code}");
        world.send("POST", "/admin/login", &[form], &body).await
    };
    let answer = send("").await;
    assert_eq!(answer.status, 429, "{answer:?}");
    assert!(answer.body.contains("<details open>") && answer.body.contains("users login-code"), "{answer:?}");
    let code = world.store.add_login_code("ada", &Actor::cli()).await.unwrap();
    let answer = send(&code).await;
    assert_eq!((answer.status, answer.header("location")), (303, "/admin"), "{answer:?}");
    assert_eq!(send(&code).await.status, 429, "a code is good once");
    let code = world.store.add_login_code("ada", &Actor::cli()).await.unwrap();
    let json = serde_json::json!({ "name": "ada", "password": PASSWORD, "code": code }).to_string();
    let kind = ("content-type", "application/json");
    let answer = world.send("POST", &format!("{API}/session"), &[kind], &json).await;
    assert_eq!(answer.status, 200, "{answer:?}");
}

#[tokio::test]
async fn a_log_in_begins_a_new_session_and_ends_the_old_one() {
    let world = World::new().await;
    let log_in = async |cookie: &str| {
        let headers = [("cookie", cookie), ("content-type", "application/x-www-form-urlencoded")];
        let body = format!("name=ada&password={}", super::encoded(PASSWORD));
        let answer = world.send("POST", "/admin/login", &headers, &body).await;
        assert_eq!((answer.status, answer.header("location")), (303, "/admin"), "{answer:?}");
        answer.cookie()
    };
    let planted = "baton_session=planted-by-somebody-else";
    let first = log_in(planted).await;
    assert_ne!(first, planted);
    let second = log_in(&first).await;
    assert_ne!(first, second);
    let alive =
        async |cookie: &str| world.send("GET", "/admin", &[("cookie", cookie)], "").await.status == 200;
    assert!(alive(&second).await && !alive(&first).await && !alive(planted).await);
    // A log-out ends the session on the server, not only in the browser.
    let answer = world.get(&Caller { cookie: second.clone(), csrf: String::new() }, "/admin").await;
    let csrf =
        answer.body.split("name=\"csrf\" value=\"").nth(1).unwrap().split('"').next().unwrap().to_owned();
    let answer = world.form(&Caller { cookie: second.clone(), csrf }, "/admin/logout", &[]).await;
    assert_eq!(answer.status, 303);
    assert!(!alive(&second).await);
}

#[tokio::test]
async fn cookies_are_strict() {
    for secure in [false, true] {
        let world = World::empty(secure).await;
        world.store.bootstrap("ada", PASSWORD, &Actor::cli()).await.unwrap();
        let body = format!("name=ada&password={}", super::encoded(PASSWORD));
        let headers = [("content-type", "application/x-www-form-urlencoded")];
        let answer = world.send("POST", "/admin/login", &headers, &body).await;
        let set = answer.header("set-cookie");
        for flag in ["HttpOnly", "SameSite=Strict", "Path=/admin"] {
            assert!(set.contains(flag), "{set}");
        }
        assert_eq!(set.contains("; Secure"), secure, "{set}");
    }
}

#[tokio::test]
async fn a_stranger_learns_nothing_of_who_there_is() {
    let world = World::new().await;
    let try_one = async |name: &str| {
        let body = serde_json::json!({ "name": name, "password": "not the password" }).to_string();
        let answer = world
            .send("POST", &format!("{API}/session"), &[("content-type", "application/json")], &body)
            .await;
        (answer.status, answer.body)
    };
    let known = try_one("ada").await;
    assert_eq!(known, try_one("nobody").await);
    assert_eq!(known.0, 401);
    // After too many wrong passwords the reply is 429, for any name.
    let mut last = known;
    for _ in 0..6 {
        last = try_one("ada").await;
    }
    assert_eq!(last.0, 429, "{last:?}");
}

#[tokio::test]
async fn every_reply_keeps_others_out() {
    let world = World::new().await;
    let ada = world.log_in("ada").await;
    let replies = [
        world.get(&ada, "/admin").await,
        world.get(&ada, "/admin/scenes/nothing").await,
        world.get(&ada, &format!("{API}/scenes")).await,
        world.get(&ada, "/admin/assets/0/none").await,
        world.send("GET", "/admin/login", &[], "").await,
        world.send("GET", "/admin/scenes", &[], "").await,
    ];
    for reply in replies {
        let csp = reply.header("content-security-policy");
        assert!(csp.starts_with("default-src 'none'; script-src 'self'; style-src 'self'"), "{reply:?}");
        for never in ["unsafe", "*", "http:", "https:", "data:"] {
            assert!(!csp.contains(never), "{csp}");
        }
        assert_eq!(reply.header("x-content-type-options"), "nosniff");
        assert_eq!(reply.header("x-frame-options"), "DENY");
        assert_eq!(reply.header("referrer-policy"), "same-origin");
        assert_eq!(reply.header("cache-control"), "no-store");
    }
}

#[tokio::test]
async fn bodies_are_bounded() {
    let world = World::new().await;
    let ada = world.log_in("ada").await;
    let answer = world.form(&ada, "/admin/tenants", &[("label", &"x".repeat(600_000))]).await;
    assert_eq!(answer.status, 413);
    // Without a log-in, the limit is lower.
    for (path, kind) in
        [("/admin/login", "application/x-www-form-urlencoded"), ("/admin/api/v1/session", "application/json")]
    {
        let answer = world.send("POST", path, &[("content-type", kind)], &"x".repeat(17_000)).await;
        assert_eq!(answer.status, 413, "{path}: {answer:?}");
    }
}

#[tokio::test]
async fn what_is_not_there_is_a_page_for_people_and_a_problem_for_programs() {
    let world = World::new().await;
    let ada = world.log_in("ada").await;
    for path in ["/admin/nope", "/admin/", "/admin/scenes/a/b/c", "/admin/nope?x=1"] {
        for caller in [None, Some(&ada)] {
            let cookie = caller.map_or("", |caller| caller.cookie.as_str());
            let answer = world.send("GET", path, &[("cookie", cookie)], "").await;
            assert_eq!(answer.status, 404, "{path}: {answer:?}");
            assert!(answer.header("content-type").starts_with("text/html"), "{path}: {answer:?}");
            assert!(answer.body.contains("there is nothing at this address"), "{path}: {answer:?}");
            assert!(answer.header("content-security-policy").starts_with("default-src 'none'"), "{path}");
        }
    }
    let answer = world.send("GET", "/admin/api/v1/nope", &[], "").await;
    assert_eq!(
        (answer.status, answer.header("content-type")),
        (404, "application/problem+json"),
        "{answer:?}"
    );
    assert!(!answer.header("x-request-id").is_empty());
}
