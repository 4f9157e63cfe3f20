//! The page of users. Never: shows a password again that was typed in a form that failed.

use askama::Template;
use axum::extract::{Extension, Path, Query, State};
use axum::response::Response;

use super::access::{Refused, settled, status};
use super::{
    Choice, Frame, PageError, PageQuery, PageResult, Question, choices, page, revision, said_of, time, to,
};
use crate::access::Role;
use crate::admin::Admin;
use crate::admin::guard::Fields;
use crate::admin::problem::Problem;
use crate::admin::session::Session;
use crate::admin::view::{UserChange, UserInput, UserView};

struct UserRow {
    name: String,
    revision: u64,
    role: String,
    since: String,
    disabled: bool,
    form: UserForm,
}

/// The form of a user. It never shows a password.
struct UserForm {
    name: String,
    roles: Vec<Choice>,
    disabled: bool,
    problem: Option<String>,
}

impl UserForm {
    fn refuse(&mut self, fields: &Fields, problem: &Problem) {
        self.name = fields.text("name");
        self.roles = choices(Role::ALL, &fields.text("role"));
        self.disabled = fields.text("disabled") == "yes";
        self.problem = Some(said_of(problem));
    }
}

#[derive(Template)]
#[template(path = "users.html")]
struct UsersPage {
    frame: Frame,
    rows: Vec<UserRow>,
    new: UserForm,
}

async fn users_page(
    admin: &Admin,
    session: &Session,
    asked: &PageQuery,
    refused: Option<Refused<'_>>,
) -> Result<Response, PageError> {
    let form = |role: &str, disabled: bool| UserForm {
        name: String::new(),
        roles: choices(Role::ALL, role),
        disabled,
        problem: None,
    };
    let row = |user: UserView| UserRow {
        form: form(&user.role, user.disabled),
        since: time(user.created_ms),
        name: user.name,
        revision: user.revision,
        role: user.role,
        disabled: user.disabled,
    };
    let mut rows: Vec<UserRow> = admin.operations.users().await?.into_iter().map(row).collect();
    let mut new = form(Role::Viewer.as_str(), false);
    if let Some(Refused { of, fields, problem }) = refused {
        let known = rows.iter_mut().find(|row| row.name == of);
        known.map_or(&mut new, |row| &mut row.form).refuse(fields, problem);
    }
    let frame = Frame::of(session, "/admin/users", "Users").with_notice(asked);
    let shown = UsersPage { frame, rows, new };
    Ok(page(status(refused), &shown))
}

pub(super) async fn list(
    State(admin): State<Admin>,
    session: Session,
    Query(asked): Query<PageQuery>,
) -> PageResult {
    users_page(&admin, &session, &asked, None).await
}

pub(super) async fn add(
    State(admin): State<Admin>,
    session: Session,
    Extension(fields): Extension<Fields>,
) -> PageResult {
    let input = UserInput {
        name: fields.text("name"),
        role: fields.text("role"),
        password: fields.get("password").unwrap_or_default(),
    };
    let again =
        async |refused: Refused<'_>| users_page(&admin, &session, &PageQuery::default(), Some(refused)).await;
    let change = admin.operations.add_user(&session.actor(), &input).await;
    settled(change, |_| to("/admin/users", "saved"), ("", &fields), again).await
}

pub(super) async fn change(
    State(admin): State<Admin>,
    session: Session,
    Path(name): Path<String>,
    Extension(fields): Extension<Fields>,
) -> PageResult {
    let change = UserChange {
        role: Some(fields.text("role")),
        disabled: Some(fields.text("disabled") == "yes"),
        password: fields.get("password").filter(|password| !password.is_empty()),
    };
    let expected = revision(&fields)?;
    let disables = change.disabled == Some(true) && !admin.operations.user(&name).await?.disabled;
    let text = match (disables, change.password.is_some()) {
        (false, false) => None,
        (true, false) => Some(format!("{name} may not log in any more, and every session of {name} ends.")),
        (false, true) => Some(format!("{name} gets the new password, and every session of {name} ends.")),
        (true, true) => {
            Some(format!("{name} gets the new password and may not log in; every session of {name} ends."))
        }
    };
    if let Some(text) = text {
        let action = format!("/admin/users/{name}");
        let (title, button, back) = ("Change the user?", "Change", "/admin/users");
        let question = Question { title, text: &text, action: &action, button, back };
        if let Some(asked) = question.unless_confirmed(&session, &fields) {
            return Ok(asked);
        }
    }
    let again =
        async |refused: Refused<'_>| users_page(&admin, &session, &PageQuery::default(), Some(refused)).await;
    let change = admin.operations.change_user(&session.actor(), &name, &change, expected).await;
    settled(change, |_| to("/admin/users", "saved"), (&name, &fields), again).await
}
