//! Tests the console and its API without sockets: requests go straight to the router, over a database in
//! memory.

mod api;
mod door;
mod experiments;
mod history;
mod models;
mod pages;
mod playground;
mod requests;
mod rollouts;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, header};
use baton_cloud::access::{Actor, Role};
use baton_cloud::admin::Admin;
use baton_cloud::admin::operations::AdminService;
use baton_cloud::service::CloudService;
use baton_cloud::store::{Database, Store};
use baton_engine::Engine;
use baton_generate::host::Host;
use http_body_util::BodyExt;
use serde_json::Value;
use tower::ServiceExt;

use crate::world::{by_hand, options};

pub(crate) const PASSWORD: &str = "correct horse battery";
pub(crate) const HOST: &str = "console.example";
const API: &str = "/admin/api/v1";

/// A console over a database in memory.
pub(crate) struct World {
    pub store: Store,
    app: Router,
    service: (CloudService, Option<Host<Engine>>),
}

/// The cookie and CSRF token of a person who has logged in.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    pub cookie: String,
    pub csrf: String,
}

/// A reply.
#[derive(Debug)]
pub(crate) struct Answer {
    pub status: u16,
    pub headers: axum::http::HeaderMap,
    pub body: String,
}

impl Answer {
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|err| panic!("{err}: {self:?}"))
    }

    pub(crate) fn header(&self, name: impl header::AsHeaderName) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// Returns the cookie that was set, as `name=value`.
    pub(crate) fn cookie(&self) -> String {
        self.header(header::SET_COOKIE).split(';').next().unwrap_or_default().to_owned()
    }
}

impl World {
    /// Makes a console without any user.
    pub(crate) async fn empty(secure: bool) -> World {
        let (service, host) = by_hand(options());
        World::over(service, Some(host), secure).await
    }

    /// Makes a console of this service, without any user.
    pub(crate) async fn over(service: CloudService, host: Option<Host<Engine>>, secure: bool) -> World {
        World::on(&Database::Memory, service, host, secure).await
    }

    /// Makes a console over this database, without any user.
    async fn on(
        database: &Database,
        service: CloudService,
        host: Option<Host<Engine>>,
        secure: bool,
    ) -> World {
        let store = Store::open(database).await.unwrap();
        let admin = Admin::new(service.clone(), AdminService::new(store.clone(), None), secure);
        World { store, app: admin.router(), service: (service, host) }
    }

    pub(crate) fn service(&self) -> &CloudService {
        &self.service.0
    }

    /// Makes a console with an administrator `ada`, an editor `edna` and a viewer `vera`.
    pub(crate) async fn new() -> World {
        World::empty(false).await.with_users().await
    }

    /// Adds an administrator `ada`, an editor `edna` and a viewer `vera`.
    pub(crate) async fn with_users(self) -> World {
        let world = self;
        world.store.bootstrap("ada", PASSWORD, &Actor::cli()).await.unwrap();
        for (name, role) in [("edna", Role::Editor), ("vera", Role::Viewer)] {
            world.store.add_user(name, role, PASSWORD, &Actor::cli()).await.unwrap();
        }
        world
    }

    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Answer {
        let mut request = Request::builder().method(method).uri(path).header(header::HOST, HOST);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::from(body.to_owned())).unwrap();
        let response = self.app.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let body = String::from_utf8_lossy(&body).into_owned();
        Answer { status: parts.status.as_u16(), headers: parts.headers, body }
    }

    pub(crate) async fn get(&self, caller: &Caller, path: &str) -> Answer {
        self.send("GET", path, &[("cookie", &caller.cookie)], "").await
    }

    /// Sends a form of a page, with the token that the page contains.
    pub(crate) async fn form(&self, caller: &Caller, path: &str, fields: &[(&str, &str)]) -> Answer {
        let csrf = [("csrf", caller.csrf.as_str())];
        let pairs = fields.iter().chain(&csrf).map(|(name, value)| format!("{name}={}", encoded(value)));
        let headers = [
            ("cookie", caller.cookie.as_str()),
            ("origin", "http://console.example"),
            ("content-type", "application/x-www-form-urlencoded"),
        ];
        self.send("POST", path, &headers, &pairs.collect::<Vec<String>>().join("&")).await
    }

    /// Sends a request to the API. `tag` is the revision that it is based on, or `*` for something new.
    pub(crate) async fn call(
        &self,
        caller: &Caller,
        method: &str,
        path: &str,
        tag: Option<&str>,
        body: &Value,
    ) -> Answer {
        let mut headers = vec![
            ("cookie", caller.cookie.as_str()),
            ("x-csrf-token", caller.csrf.as_str()),
            ("content-type", "application/json"),
        ];
        match tag {
            Some("*") => headers.push(("if-none-match", "*")),
            Some(tag) => headers.push(("if-match", tag)),
            None => {}
        }
        self.send(method, &format!("{API}{path}"), &headers, &body.to_string()).await
    }

    pub(crate) async fn log_in(&self, name: &str) -> Caller {
        let body = serde_json::json!({ "name": name, "password": PASSWORD }).to_string();
        let headers = [("content-type", "application/json")];
        let answer = self.send("POST", &format!("{API}/session"), &headers, &body).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        Caller { cookie: answer.cookie(), csrf: answer.json()["csrf_token"].as_str().unwrap().to_owned() }
    }
}

pub(crate) fn encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric();
    let one = |byte: u8| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    text.bytes().map(one).collect()
}
