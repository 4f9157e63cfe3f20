//! Pages of device classes, tenants and keys, and the parts that they share with users.

use askama::Template;
use axum::extract::{Extension, Path, Query, State};
use axum::http::StatusCode;
use axum::response::Response;

use super::{
    Choice, Frame, PageError, PageQuery, PageResult, Question, choices, page, revision, said_of, time, to,
};
use crate::access::{Scope, Scopes};
use crate::admin::Admin;
use crate::admin::guard::Fields;
use crate::admin::problem::{Kind, Problem};
use crate::admin::session::Session;
use crate::admin::view::{ClassInput, ClassView, KeyInput, KeyView, NewKey, TenantInput, TenantView};
use crate::learn::forecast::digits;
use crate::store::{Expected, now_ms};

/// A form that was refused: what was typed, and what is wrong with it.
#[derive(Clone, Copy)]
pub(super) struct Refused<'a> {
    /// The id of the record, if it is in the path and not in a field.
    pub(super) of: &'a str,
    pub(super) fields: &'a Fields,
    pub(super) problem: &'a Problem,
}

pub(super) fn status(refused: Option<Refused<'_>>) -> StatusCode {
    refused.map_or(StatusCode::OK, |refused| refused.problem.kind.status())
}

/// Returns the index of the form that was sent. Each form has an id and a revision; the last one makes a new
/// record.
fn sent<'a>(mut forms: impl ExactSizeIterator<Item = (&'a str, u64)>, fields: &Fields) -> usize {
    let last = forms.len().saturating_sub(1);
    let (id, is_new) = (fields.text("id"), fields.text("revision") == "0");
    forms.position(|(known, revision)| known == id && (!is_new || revision == 0)).unwrap_or(last)
}

/// Returns the page after a change. If the user can correct the error, that is the form again with the
/// reason. The id is that of the record, as in [`Refused::of`].
pub(super) async fn settled<T>(
    change: Result<T, Problem>,
    done: impl FnOnce(T) -> Response,
    (of, fields): (&str, &Fields),
    again: impl AsyncFnOnce(Refused<'_>) -> PageResult,
) -> PageResult {
    match change {
        Ok(made) => Ok(done(made)),
        Err(problem) if matches!(problem.kind, Kind::Invalid | Kind::Stale | Kind::Conflict) => {
            again(Refused { of, fields, problem: &problem }).await
        }
        Err(problem) => Err(problem.into()),
    }
}

struct ClassRow {
    id: String,
    label: String,
    prefill: String,
    prefill2: String,
    decode: String,
    source: String,
}

#[derive(Default)]
struct ClassForm {
    key: usize,
    title: String,
    id: String,
    revision: u64,
    label: String,
    prefill: String,
    prefill2: String,
    decode: String,
    /// The id of a new record, as it was typed.
    typed: String,
    problem: Option<String>,
}

impl ClassForm {
    fn refuse(&mut self, fields: &Fields, problem: &Problem) {
        self.typed = fields.text("id");
        self.label = fields.text("label");
        self.prefill = fields.text("prefill_ms_per_token");
        self.prefill2 = fields.text("prefill_ms_per_token2");
        self.decode = fields.text("decode_ms");
        self.problem = Some(said_of(problem));
    }
}

#[derive(Template)]
#[template(path = "classes.html")]
struct ClassesPage {
    frame: Frame,
    edits: bool,
    rows: Vec<ClassRow>,
    forms: Vec<ClassForm>,
}

fn class_row(class: &ClassView) -> ClassRow {
    ClassRow {
        id: class.id.clone(),
        label: class.label.clone(),
        prefill: digits(class.prefill_ms_per_token),
        prefill2: digits(class.prefill_ms_per_token2),
        decode: digits(class.decode_ms),
        source: match (class.fixed, class.samples) {
            (true, _) => "set here".to_owned(),
            (false, 0) => "assumed".to_owned(),
            (false, samples) => format!("median of {samples} reports"),
        },
    }
}

fn class_form(key: usize, class: &ClassView) -> ClassForm {
    let set = |value: f64| if class.fixed { value.to_string() } else { String::new() };
    ClassForm {
        key,
        title: class.id.clone(),
        id: class.id.clone(),
        revision: class.revision,
        label: class.label.clone(),
        prefill: set(class.prefill_ms_per_token),
        prefill2: set(class.prefill_ms_per_token2),
        decode: set(class.decode_ms),
        ..ClassForm::default()
    }
}

async fn classes_page(
    admin: &Admin,
    session: &Session,
    asked: &PageQuery,
    refused: Option<Refused<'_>>,
) -> Result<Response, PageError> {
    let classes = admin.operations.classes(&admin.service.coefficients()).await?;
    let mut forms: Vec<ClassForm> =
        classes.iter().enumerate().map(|(key, class)| class_form(key, class)).collect();
    forms.push(ClassForm { key: forms.len(), title: "New class".to_owned(), ..ClassForm::default() });
    if let Some(Refused { fields, problem, .. }) = refused {
        let at = sent(forms.iter().map(|form| (form.id.as_str(), form.revision)), fields);
        forms[at].refuse(fields, problem);
    }
    let shown = ClassesPage {
        frame: Frame::of(session, "/admin/device-classes", "Device classes").with_notice(asked),
        edits: session.edits(),
        rows: classes.iter().map(class_row).collect(),
        forms,
    };
    Ok(page(status(refused), &shown))
}

pub(super) async fn classes(
    State(admin): State<Admin>,
    session: Session,
    Query(asked): Query<PageQuery>,
) -> PageResult {
    classes_page(&admin, &session, &asked, None).await
}

pub(super) async fn set_class(
    State(admin): State<Admin>,
    session: Session,
    Extension(fields): Extension<Fields>,
) -> PageResult {
    let set = async {
        let input = ClassInput {
            label: fields.text("label"),
            prefill_ms_per_token: fields.number("prefill_ms_per_token")?,
            prefill_ms_per_token2: fields.number("prefill_ms_per_token2")?,
            decode_ms: fields.number("decode_ms")?,
        };
        admin.operations.set_class(&session.actor(), &fields.text("id"), &input, revision(&fields)?).await
    };
    let again = async |refused: Refused<'_>| {
        classes_page(&admin, &session, &PageQuery::default(), Some(refused)).await
    };
    settled(set.await, |_| to("/admin/device-classes", "saved"), ("", &fields), again).await
}

struct TenantRow {
    id: String,
    label: String,
    weight: u32,
    rate: String,
    concurrency: String,
    tokens: String,
    disabled: bool,
}

#[derive(Default)]
struct TenantForm {
    key: usize,
    title: String,
    id: String,
    revision: u64,
    label: String,
    weight: String,
    rate: String,
    concurrency: String,
    tokens: String,
    disabled: bool,
    /// The id of a new record, as it was typed.
    typed: String,
    problem: Option<String>,
}

impl TenantForm {
    fn refuse(&mut self, fields: &Fields, problem: &Problem) {
        self.typed = fields.text("id");
        self.label = fields.text("label");
        self.weight = fields.text("weight");
        self.rate = fields.text("requests_per_minute");
        self.concurrency = fields.text("concurrency_max");
        self.tokens = fields.text("tokens_per_day");
        self.disabled = fields.text("disabled") == "yes";
        self.problem = Some(said_of(problem));
    }
}

#[derive(Template)]
#[template(path = "tenants.html")]
struct TenantsPage {
    frame: Frame,
    administers: bool,
    rows: Vec<TenantRow>,
    forms: Vec<TenantForm>,
}

fn tenant_row(tenant: &TenantView) -> TenantRow {
    let limit = |value: Option<u64>| value.map_or("no limit".to_owned(), |value| value.to_string());
    TenantRow {
        id: tenant.id.clone(),
        label: tenant.label.clone(),
        weight: tenant.weight,
        rate: limit(tenant.requests_per_minute.map(u64::from)),
        concurrency: limit(tenant.concurrency_max.map(u64::from)),
        tokens: limit(tenant.tokens_per_day),
        disabled: tenant.disabled,
    }
}

fn tenant_form(key: usize, tenant: &TenantView) -> TenantForm {
    let limit = |value: Option<u64>| value.map(|value| value.to_string()).unwrap_or_default();
    TenantForm {
        key,
        title: tenant.id.clone(),
        id: tenant.id.clone(),
        revision: tenant.revision,
        label: tenant.label.clone(),
        weight: tenant.weight.to_string(),
        rate: limit(tenant.requests_per_minute.map(u64::from)),
        concurrency: limit(tenant.concurrency_max.map(u64::from)),
        tokens: limit(tenant.tokens_per_day),
        disabled: tenant.disabled,
        ..TenantForm::default()
    }
}

async fn tenants_page(
    admin: &Admin,
    session: &Session,
    asked: &PageQuery,
    refused: Option<Refused<'_>>,
) -> Result<Response, PageError> {
    let tenants = admin.operations.tenants().await?;
    let mut forms: Vec<TenantForm> =
        tenants.iter().enumerate().map(|(key, one)| tenant_form(key, one)).collect();
    forms.push(TenantForm {
        key: forms.len(),
        title: "New tenant".to_owned(),
        weight: crate::access::tenant::WEIGHT_DEFAULT.to_string(),
        ..TenantForm::default()
    });
    if let Some(Refused { fields, problem, .. }) = refused {
        let at = sent(forms.iter().map(|form| (form.id.as_str(), form.revision)), fields);
        forms[at].refuse(fields, problem);
    }
    let shown = TenantsPage {
        frame: Frame::of(session, "/admin/tenants", "Tenants").with_notice(asked),
        administers: session.administers(),
        rows: tenants.iter().map(tenant_row).collect(),
        forms,
    };
    Ok(page(status(refused), &shown))
}

pub(super) async fn tenants(
    State(admin): State<Admin>,
    session: Session,
    Query(asked): Query<PageQuery>,
) -> PageResult {
    tenants_page(&admin, &session, &asked, None).await
}

pub(super) async fn set_tenant(
    State(admin): State<Admin>,
    session: Session,
    Extension(fields): Extension<Fields>,
) -> PageResult {
    let id = fields.text("id");
    // Only disabling an enabled tenant needs a confirmation. A new or missing one has no keys to refuse.
    let is_enabled = admin.operations.tenant(&id).await.is_ok_and(|tenant| !tenant.disabled);
    if is_enabled && fields.text("disabled") == "yes" {
        let text = format!("Every key of the tenant {id} is refused from now on.");
        let (title, button, back) = ("Disable the tenant?", "Disable", "/admin/tenants");
        let question = Question { title, text: &text, action: "/admin/tenants", button, back };
        if let Some(asked) = question.unless_confirmed(&session, &fields) {
            return Ok(asked);
        }
    }
    let set = async {
        let input = TenantInput {
            label: fields.text("label"),
            weight: fields.needed("weight")?,
            requests_per_minute: fields.number("requests_per_minute")?,
            concurrency_max: fields.number("concurrency_max")?,
            tokens_per_day: fields.number("tokens_per_day")?,
            disabled: fields.text("disabled") == "yes",
        };
        admin.operations.set_tenant(&session.actor(), &id, &input, revision(&fields)?).await
    };
    let again = async |refused: Refused<'_>| {
        tenants_page(&admin, &session, &PageQuery::default(), Some(refused)).await
    };
    settled(set.await, |_| to("/admin/tenants", "saved"), ("", &fields), again).await
}

struct KeyRow {
    id: String,
    revision: u64,
    label: String,
    tenant: String,
    scopes: String,
    made: String,
    used: String,
    state: String,
    tone: &'static str,
    good: bool,
}

#[derive(Template)]
#[template(path = "keys.html")]
struct KeysPage {
    frame: Frame,
    administers: bool,
    rows: Vec<KeyRow>,
    /// Why a key of the list was not changed.
    problem: Option<String>,
    form: KeyForm,
}

/// The form of a new key.
struct KeyForm {
    tenants: Vec<Choice>,
    label: String,
    days: String,
    scopes: Vec<(&'static str, &'static str, bool)>,
    problem: Option<String>,
}

fn key_form(tenants: &[TenantView], refused: Option<Refused<'_>>) -> KeyForm {
    let typed = |name: &str| refused.map(|refused| refused.fields.text(name)).unwrap_or_default();
    let asked = refused.map(|refused| refused.fields.all("scopes"));
    let scope = |scope: Scope| {
        let checked = match &asked {
            Some(asked) => asked.iter().any(|asked| asked == scope.as_str()),
            None => Scopes::device().allow(scope),
        };
        (scope.as_str(), scope_text(scope), checked)
    };
    KeyForm {
        tenants: choices(tenants.iter().map(|tenant| &tenant.id), &typed("tenant")),
        label: typed("label"),
        days: typed("days"),
        scopes: Scope::ALL.map(scope).into(),
        problem: refused.map(|refused| said_of(refused.problem)),
    }
}

#[derive(Template)]
#[template(path = "key_made.html")]
struct KeyMadePage {
    frame: Frame,
    id: String,
    tenant: String,
    secret: String,
}

fn key_row(key: KeyView, now_ms: i64) -> KeyRow {
    let over = |at: Option<i64>| at.is_some_and(|at| at <= now_ms);
    let (state, tone) = match (over(key.revoked_ms), over(key.expires_ms), key.revoked_ms, key.expires_ms) {
        (true, ..) => ("revoked".to_owned(), "bad"),
        (_, true, ..) => ("expired".to_owned(), "bad"),
        (_, _, Some(_), _) => ("replaced, still good".to_owned(), "warn"),
        (_, _, _, Some(at)) => {
            let days = (at - now_ms) / crate::learn::traffic::DAY_MS;
            (format!("good, {days} days left"), if days < 14 { "warn" } else { "good" })
        }
        _ => ("good".to_owned(), "good"),
    };
    KeyRow {
        good: !over(key.revoked_ms) && !over(key.expires_ms),
        made: time(key.created_ms),
        used: key.last_used_ms.map_or("never".to_owned(), time),
        scopes: key.scopes.join(", "),
        revision: key.revision,
        label: key.label,
        tenant: key.tenant,
        id: key.id,
        state,
        tone,
    }
}

const fn scope_text(scope: Scope) -> &'static str {
    match scope {
        Scope::Assist => "first tokens for devices",
        Scope::Chat => "whole answers over the chat API",
        Scope::ScenesRead => "read scenes, as devices do",
        Scope::Stats => "read figures of the service",
    }
}

async fn keys_page(
    admin: &Admin,
    session: &Session,
    asked: &PageQuery,
    refused: Option<Refused<'_>>,
) -> Result<Response, PageError> {
    let now_ms = now_ms();
    let rows = admin.operations.keys().await?.into_iter().map(|key| key_row(key, now_ms)).collect();
    let shown = KeysPage {
        frame: Frame::of(session, "/admin/keys", "API keys").with_notice(asked),
        administers: session.administers(),
        rows,
        problem: refused.filter(|refused| !refused.of.is_empty()).map(|refused| said_of(refused.problem)),
        form: key_form(&admin.operations.tenants().await?, refused.filter(|refused| refused.of.is_empty())),
    };
    Ok(page(status(refused), &shown))
}

pub(super) async fn keys(
    State(admin): State<Admin>,
    session: Session,
    Query(asked): Query<PageQuery>,
) -> PageResult {
    keys_page(&admin, &session, &asked, None).await
}

fn made_page(session: &Session, made: NewKey) -> Response {
    let frame = Frame::of(session, "/admin/keys", "New key").narrow();
    page(
        StatusCode::OK,
        &KeyMadePage { frame, id: made.key.id, tenant: made.key.tenant, secret: made.secret },
    )
}

pub(super) async fn create_key(
    State(admin): State<Admin>,
    session: Session,
    Extension(fields): Extension<Fields>,
) -> PageResult {
    let create = async {
        let input = KeyInput {
            tenant: fields.text("tenant"),
            label: fields.text("label"),
            scopes: fields.all("scopes"),
            days: fields.number("days")?,
        };
        admin.operations.create_key(&session.actor(), &input, now_ms()).await
    };
    let again =
        async |refused: Refused<'_>| keys_page(&admin, &session, &PageQuery::default(), Some(refused)).await;
    settled(create.await, |made| made_page(&session, made), ("", &fields), again).await
}

/// Changes the key once the user has confirmed it; asks for that first.
async fn change_key<T>(
    (admin, session): (&Admin, &Session),
    (id, fields): (&str, &Fields),
    question: Question<'_>,
    change: impl AsyncFnOnce(Expected) -> Result<T, Problem>,
    done: impl FnOnce(T) -> Response,
) -> PageResult {
    if let Some(asked) = question.unless_confirmed(session, fields) {
        return Ok(asked);
    }
    let change = change(revision(fields)?).await;
    let again =
        async |refused: Refused<'_>| keys_page(admin, session, &PageQuery::default(), Some(refused)).await;
    settled(change, done, (id, fields), again).await
}

pub(super) async fn revoke_key(
    State(admin): State<Admin>,
    session: Session,
    Path(id): Path<String>,
    Extension(fields): Extension<Fields>,
) -> PageResult {
    let action = format!("/admin/keys/{id}/revoke");
    let text = format!("The key btk_{id} is refused from now on. This cannot be undone.");
    let (title, button, back) = ("Revoke the key?", "Revoke", "/admin/keys");
    let question = Question { title, text: &text, action: &action, button, back };
    let revoke = async |expected| admin.operations.revoke_key(&session.actor(), &id, expected).await;
    let done = |_| to("/admin/keys", "revoked");
    change_key((&admin, &session), (&id, &fields), question, revoke, done).await
}

pub(super) async fn rotate_key(
    State(admin): State<Admin>,
    session: Session,
    Path(id): Path<String>,
    Extension(fields): Extension<Fields>,
) -> PageResult {
    let action = format!("/admin/keys/{id}/rotate");
    let text = format!("A new key takes the place of btk_{id}; the old one stays valid for a day.");
    let (title, button, back) = ("Rotate the key?", "Rotate", "/admin/keys");
    let question = Question { title, text: &text, action: &action, button, back };
    let rotate = async |expected| admin.operations.rotate_key(&session.actor(), &id, expected).await;
    let done = |made| made_page(&session, made);
    change_key((&admin, &session), (&id, &fields), question, rotate, done).await
}
