//! `/admin/api/v1/device-classes`, `tenants`, `keys` and `users`.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use super::body::{JsonBody, PathText};
use super::{changed, expected, tagged};
use crate::admin::Admin;
use crate::admin::problem::{Kind, Problem, ProblemBody};
use crate::admin::session::Session;
use crate::admin::view::{
    ClassInput, ClassView, KeyInput, KeyView, NewKey, TenantInput, TenantView, UserChange, UserInput,
    UserView,
};
use crate::store::now_ms;

/// Every device class.
#[derive(Serialize, ToSchema)]
pub(super) struct ClassList {
    /// By id.
    device_classes: Vec<ClassView>,
}

/// Every tenant.
#[derive(Serialize, ToSchema)]
pub(super) struct TenantList {
    /// By id.
    tenants: Vec<TenantView>,
}

/// Every key, without its secret.
#[derive(Serialize, ToSchema)]
pub(super) struct KeyList {
    /// By id.
    keys: Vec<KeyView>,
}

/// Every user.
#[derive(Serialize, ToSchema)]
pub(super) struct UserList {
    /// By name.
    users: Vec<UserView>,
}

async fn one_class(admin: &Admin, id: &str) -> Result<ClassView, Problem> {
    let classes = admin.operations.classes(&admin.service.coefficients()).await?;
    let found = classes.into_iter().find(|class| class.id == id);
    found.ok_or_else(|| {
        let id: String = id.chars().take(64).collect();
        Problem::new(Kind::NotFound, format!("device class `{id}` does not exist"))
    })
}

/// Lists every device class that is set or was reported.
#[utoipa::path(
    get, path = "/admin/api/v1/device-classes", tag = "device classes", operation_id = "list_device_classes",
    responses(
        (status = 200, body = ClassList),
        (status = "default", description = "Refused", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn classes(State(admin): State<Admin>) -> Result<Json<ClassList>, Problem> {
    Ok(Json(ClassList { device_classes: admin.operations.classes(&admin.service.coefficients()).await? }))
}

/// Returns one device class.
#[utoipa::path(
    get, path = "/admin/api/v1/device-classes/{id}", tag = "device classes", operation_id = "show_device_class",
    params(("id" = String, Path)),
    responses(
        (status = 200, body = ClassView),
        (status = "default", description = "Refused", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn class(
    State(admin): State<Admin>,
    PathText(id): PathText<String>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let class = one_class(&admin, &id).await?;
    Ok(tagged(&headers, class.revision, &class))
}

/// Adds or changes a device class. One that was only reported has revision 0.
#[utoipa::path(
    put, path = "/admin/api/v1/device-classes/{id}", tag = "device classes", operation_id = "set_device_class",
    params(("id" = String, Path), ("If-Match" = Option<String>, Header), ("If-None-Match" = Option<String>, Header)), request_body = ClassInput,
    responses(
        (status = 200, body = ClassView),
        (status = "default", description = "Refused", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn set_class(
    State(admin): State<Admin>,
    session: Session,
    PathText(id): PathText<String>,
    headers: HeaderMap,
    JsonBody(input): JsonBody<ClassInput>,
) -> Result<Response, Problem> {
    let set = admin.operations.set_class(&session.actor(), &id, &input, expected(&headers)?).await?;
    Ok(changed(set.revision, &one_class(&admin, &id).await?))
}

/// Removes the settings of a device class. From then on, the costs that its devices report are used.
#[utoipa::path(
    delete, path = "/admin/api/v1/device-classes/{id}", tag = "device classes", operation_id = "remove_device_class",
    params(("id" = String, Path), ("If-Match" = Option<String>, Header)),
    responses(
        (status = 204, description = "Removed"),
        (status = "default", description = "Refused", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn remove_class(
    State(admin): State<Admin>,
    session: Session,
    PathText(id): PathText<String>,
    headers: HeaderMap,
) -> Result<StatusCode, Problem> {
    admin.operations.remove_class(&session.actor(), &id, expected(&headers)?).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Lists every tenant.
#[utoipa::path(
    get, path = "/admin/api/v1/tenants", tag = "tenants", operation_id = "list_tenants",
    responses(
        (status = 200, body = TenantList),
        (status = "default", description = "Refused", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn tenants(State(admin): State<Admin>) -> Result<Json<TenantList>, Problem> {
    Ok(Json(TenantList { tenants: admin.operations.tenants().await? }))
}

/// Returns one tenant.
#[utoipa::path(
    get, path = "/admin/api/v1/tenants/{id}", tag = "tenants", operation_id = "show_tenant",
    params(("id" = String, Path)),
    responses(
        (status = 200, body = TenantView),
        (status = "default", description = "Refused", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn tenant(
    State(admin): State<Admin>,
    PathText(id): PathText<String>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let tenant = admin.operations.tenant(&id).await?;
    Ok(tagged(&headers, tenant.revision, &tenant))
}

/// Adds or changes a tenant.
#[utoipa::path(
    put, path = "/admin/api/v1/tenants/{id}", tag = "tenants", operation_id = "set_tenant",
    params(("id" = String, Path), ("If-Match" = Option<String>, Header), ("If-None-Match" = Option<String>, Header)), request_body = TenantInput,
    responses(
        (status = 200, body = TenantView),
        (status = "default", description = "Refused", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn set_tenant(
    State(admin): State<Admin>,
    session: Session,
    PathText(id): PathText<String>,
    headers: HeaderMap,
    JsonBody(input): JsonBody<TenantInput>,
) -> Result<Response, Problem> {
    let tenant = admin.operations.set_tenant(&session.actor(), &id, &input, expected(&headers)?).await?;
    Ok(changed(tenant.revision, &tenant))
}

/// Lists every key, without its secret.
#[utoipa::path(
    get, path = "/admin/api/v1/keys", tag = "keys", operation_id = "list_keys",
    responses(
        (status = 200, body = KeyList),
        (status = "default", description = "Refused", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn keys(State(admin): State<Admin>) -> Result<Json<KeyList>, Problem> {
    Ok(Json(KeyList { keys: admin.operations.keys().await? }))
}

/// Creates a key. Only this reply contains its secret.
#[utoipa::path(
    post, path = "/admin/api/v1/keys", tag = "keys", operation_id = "create_key", request_body = KeyInput,
    responses(
        (status = 201, body = NewKey),
        (status = "default", description = "Refused", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn create_key(
    State(admin): State<Admin>,
    session: Session,
    JsonBody(input): JsonBody<KeyInput>,
) -> Result<Response, Problem> {
    let made = admin.operations.create_key(&session.actor(), &input, now_ms()).await?;
    Ok((StatusCode::CREATED, changed(made.key.revision, &made)).into_response())
}

/// Returns one key, without its secret.
#[utoipa::path(
    get, path = "/admin/api/v1/keys/{id}", tag = "keys", operation_id = "show_key",
    params(("id" = String, Path)),
    responses(
        (status = 200, body = KeyView),
        (status = "default", description = "Refused", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn key(
    State(admin): State<Admin>,
    PathText(id): PathText<String>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let key = admin.operations.key(&id).await?;
    Ok(tagged(&headers, key.revision, &key))
}

/// Revokes a key. This cannot be undone.
#[utoipa::path(
    delete, path = "/admin/api/v1/keys/{id}", tag = "keys", operation_id = "revoke_key",
    params(("id" = String, Path), ("If-Match" = Option<String>, Header)),
    responses(
        (status = 200, body = KeyView),
        (status = "default", description = "Refused", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn revoke_key(
    State(admin): State<Admin>,
    session: Session,
    PathText(id): PathText<String>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let key = admin.operations.revoke_key(&session.actor(), &id, expected(&headers)?).await?;
    Ok(changed(key.revision, &key))
}

/// Creates a key that replaces this one, which stays valid for a day. Only this reply contains the new
/// secret.
#[utoipa::path(
    post, path = "/admin/api/v1/keys/{id}/rotate", tag = "keys", operation_id = "rotate_key",
    params(("id" = String, Path), ("If-Match" = Option<String>, Header)),
    responses(
        (status = 201, body = NewKey),
        (status = "default", description = "Refused", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn rotate_key(
    State(admin): State<Admin>,
    session: Session,
    PathText(id): PathText<String>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let made = admin.operations.rotate_key(&session.actor(), &id, expected(&headers)?).await?;
    Ok((StatusCode::CREATED, changed(made.key.revision, &made)).into_response())
}

/// Lists every user.
#[utoipa::path(
    get, path = "/admin/api/v1/users", tag = "users", operation_id = "list_users",
    responses(
        (status = 200, body = UserList),
        (status = "default", description = "Refused", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn users(State(admin): State<Admin>) -> Result<Json<UserList>, Problem> {
    Ok(Json(UserList { users: admin.operations.users().await? }))
}

/// Adds a user.
#[utoipa::path(
    post, path = "/admin/api/v1/users", tag = "users", operation_id = "add_user", request_body = UserInput,
    responses(
        (status = 201, body = UserView),
        (status = "default", description = "Refused", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn add_user(
    State(admin): State<Admin>,
    session: Session,
    JsonBody(input): JsonBody<UserInput>,
) -> Result<Response, Problem> {
    let user = admin.operations.add_user(&session.actor(), &input).await?;
    Ok((StatusCode::CREATED, changed(user.revision, &user)).into_response())
}

/// Returns one user.
#[utoipa::path(
    get, path = "/admin/api/v1/users/{name}", tag = "users", operation_id = "show_user",
    params(("name" = String, Path)),
    responses(
        (status = 200, body = UserView),
        (status = "default", description = "Refused", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn user(
    State(admin): State<Admin>,
    PathText(name): PathText<String>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let user = admin.operations.user(&name).await?;
    Ok(tagged(&headers, user.revision, &user))
}

/// Changes a user. A new password or disabling ends every session of the user.
#[utoipa::path(
    patch, path = "/admin/api/v1/users/{name}", tag = "users", operation_id = "change_user",
    params(("name" = String, Path), ("If-Match" = Option<String>, Header)), request_body = UserChange,
    responses(
        (status = 200, body = UserView),
        (status = "default", description = "Refused", body = ProblemBody, content_type = "application/problem+json"),
    )
)]
pub(super) async fn change_user(
    State(admin): State<Admin>,
    session: Session,
    PathText(name): PathText<String>,
    headers: HeaderMap,
    JsonBody(change): JsonBody<UserChange>,
) -> Result<Response, Problem> {
    let user = admin.operations.change_user(&session.actor(), &name, &change, expected(&headers)?).await?;
    Ok(changed(user.revision, &user))
}
