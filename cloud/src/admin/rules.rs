//! Access rules: every route of the console and its API in one table.
//!
//! Pure. Always: a route that is not in the table is refused to everybody, so a forgotten line denies access;
//! each role may do what lower roles may.

use axum::http::Method;

use crate::access::Role;

/// What a route requires of its caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Requirement {
    /// Nothing, not even that there is an administrator: for style sheet, script and icon.
    Nothing,
    /// Nothing of the caller. There must be an administrator. For the log-in and the API's description.
    Anyone,
    /// A user who has logged in with this role or a higher one.
    Role(Role),
}

/// One route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    /// The method.
    pub method: &'static str,
    /// The path, with its parameters in braces.
    pub path: &'static str,
    /// What it requires of its caller.
    pub need: Requirement,
}

const fn rule(method: &'static str, path: &'static str, need: Requirement) -> Rule {
    Rule { method, path, need }
}

const NOTHING: Requirement = Requirement::Nothing;
const ANYONE: Requirement = Requirement::Anyone;
const VIEWER: Requirement = Requirement::Role(Role::Viewer);
const EDITOR: Requirement = Requirement::Role(Role::Editor);
const ADMIN: Requirement = Requirement::Role(Role::Admin);

/// Every route.
pub const RULES: &[Rule] = &[
    // The API.
    rule("GET", "/admin/api/v1/openapi.json", ANYONE),
    rule("POST", "/admin/api/v1/session", ANYONE),
    rule("GET", "/admin/api/v1/session", VIEWER),
    rule("DELETE", "/admin/api/v1/session", VIEWER),
    rule("GET", "/admin/api/v1/overview", VIEWER),
    rule("GET", "/admin/api/v1/requests", VIEWER),
    rule("GET", "/admin/api/v1/requests/{id}", VIEWER),
    rule("POST", "/admin/api/v1/requests/{id}/cancel", ADMIN),
    rule("POST", "/admin/api/v1/playground", EDITOR),
    rule("GET", "/admin/api/v1/history", VIEWER),
    rule("GET", "/admin/api/v1/usage", VIEWER),
    rule("GET", "/admin/api/v1/scenes", VIEWER),
    rule("GET", "/admin/api/v1/scenes/{id}", VIEWER),
    rule("GET", "/admin/api/v1/scenes/{id}/versions", VIEWER),
    rule("GET", "/admin/api/v1/scenes/{id}/versions/{version}", VIEWER),
    rule("GET", "/admin/api/v1/scenes/{id}/diff", VIEWER),
    rule("POST", "/admin/api/v1/scenes/{id}/predict", VIEWER),
    rule("PUT", "/admin/api/v1/scenes/{id}/draft", EDITOR),
    rule("DELETE", "/admin/api/v1/scenes/{id}/draft", EDITOR),
    rule("POST", "/admin/api/v1/scenes/{id}/publish", EDITOR),
    rule("POST", "/admin/api/v1/scenes/{id}/rollback", EDITOR),
    rule("GET", "/admin/api/v1/experiments", VIEWER),
    rule("GET", "/admin/api/v1/experiments/{id}", VIEWER),
    rule("PUT", "/admin/api/v1/experiments/{id}", EDITOR),
    rule("POST", "/admin/api/v1/experiments/{id}/start", EDITOR),
    rule("POST", "/admin/api/v1/experiments/{id}/stop", EDITOR),
    rule("POST", "/admin/api/v1/experiments/{id}/promote", EDITOR),
    rule("GET", "/admin/api/v1/device-classes", VIEWER),
    rule("GET", "/admin/api/v1/device-classes/{id}", VIEWER),
    rule("PUT", "/admin/api/v1/device-classes/{id}", EDITOR),
    rule("DELETE", "/admin/api/v1/device-classes/{id}", EDITOR),
    rule("GET", "/admin/api/v1/registry", VIEWER),
    rule("GET", "/admin/api/v1/rollouts", VIEWER),
    rule("GET", "/admin/api/v1/rollouts/{scene}/{class}", VIEWER),
    rule("PUT", "/admin/api/v1/rollouts/{scene}/{class}", EDITOR),
    rule("POST", "/admin/api/v1/rollouts/{scene}/{class}", EDITOR),
    rule("DELETE", "/admin/api/v1/rollouts/{scene}/{class}", EDITOR),
    rule("GET", "/admin/api/v1/tenants", VIEWER),
    rule("GET", "/admin/api/v1/tenants/{id}", VIEWER),
    rule("PUT", "/admin/api/v1/tenants/{id}", ADMIN),
    rule("GET", "/admin/api/v1/keys", VIEWER),
    rule("POST", "/admin/api/v1/keys", ADMIN),
    rule("GET", "/admin/api/v1/keys/{id}", VIEWER),
    rule("DELETE", "/admin/api/v1/keys/{id}", ADMIN),
    rule("POST", "/admin/api/v1/keys/{id}/rotate", ADMIN),
    rule("GET", "/admin/api/v1/models", VIEWER),
    rule("POST", "/admin/api/v1/models/{name}/load", ADMIN),
    rule("POST", "/admin/api/v1/models/{name}/unload", ADMIN),
    rule("POST", "/admin/api/v1/models/{name}/drain", ADMIN),
    rule("GET", "/admin/api/v1/users", ADMIN),
    rule("POST", "/admin/api/v1/users", ADMIN),
    rule("GET", "/admin/api/v1/users/{name}", ADMIN),
    rule("PATCH", "/admin/api/v1/users/{name}", ADMIN),
    rule("GET", "/admin/api/v1/audit", VIEWER),
    rule("GET", "/admin/api/v1/audit/verify", VIEWER),
    // The console.
    rule("GET", "/admin/assets/{hash}/{name}", NOTHING),
    rule("GET", "/admin/login", ANYONE),
    rule("POST", "/admin/login", ANYONE),
    rule("POST", "/admin/logout", VIEWER),
    rule("GET", "/admin", VIEWER),
    rule("GET", "/admin/requests", VIEWER),
    rule("POST", "/admin/requests", ADMIN),
    rule("GET", "/admin/playground", EDITOR),
    rule("POST", "/admin/playground", EDITOR),
    rule("GET", "/admin/history", VIEWER),
    rule("GET", "/admin/scenes", VIEWER),
    rule("GET", "/admin/new-scene", EDITOR),
    rule("POST", "/admin/new-scene", EDITOR),
    rule("GET", "/admin/scenes/{id}", VIEWER),
    rule("POST", "/admin/scenes/{id}/preview", VIEWER),
    rule("POST", "/admin/scenes/{id}/draft", EDITOR),
    rule("POST", "/admin/scenes/{id}/discard", EDITOR),
    rule("GET", "/admin/scenes/{id}/review", EDITOR),
    rule("POST", "/admin/scenes/{id}/publish", EDITOR),
    rule("GET", "/admin/scenes/{id}/versions/{version}", VIEWER),
    rule("POST", "/admin/scenes/{id}/rollback", EDITOR),
    rule("GET", "/admin/experiments", VIEWER),
    rule("POST", "/admin/experiments", EDITOR),
    rule("GET", "/admin/experiments/{id}", VIEWER),
    rule("POST", "/admin/experiments/{id}/start", EDITOR),
    rule("POST", "/admin/experiments/{id}/stop", EDITOR),
    rule("POST", "/admin/experiments/{id}/promote", EDITOR),
    rule("GET", "/admin/device-classes", VIEWER),
    rule("POST", "/admin/device-classes", EDITOR),
    rule("GET", "/admin/rollouts", VIEWER),
    rule("POST", "/admin/rollouts", EDITOR),
    rule("GET", "/admin/tenants", VIEWER),
    rule("POST", "/admin/tenants", ADMIN),
    rule("GET", "/admin/keys", VIEWER),
    rule("POST", "/admin/keys", ADMIN),
    rule("POST", "/admin/keys/{id}/revoke", ADMIN),
    rule("POST", "/admin/keys/{id}/rotate", ADMIN),
    rule("GET", "/admin/models", VIEWER),
    rule("POST", "/admin/models", ADMIN),
    rule("GET", "/admin/users", ADMIN),
    rule("POST", "/admin/users", ADMIN),
    rule("POST", "/admin/users/{name}", ADMIN),
    rule("GET", "/admin/audit", VIEWER),
];

/// Returns the rule of a route; `HEAD` is like `GET`.
#[must_use]
pub fn find(method: &Method, path: &str) -> Option<&'static Rule> {
    let method = if method == Method::HEAD { "GET" } else { method.as_str() };
    RULES.iter().find(|rule| rule.path == path && rule.method == method)
}

/// Returns whether a method may change something: all except those that only read.
#[must_use]
pub fn is_unsafe(method: &Method) -> bool {
    !matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}

/// Returns whether a role satisfies a requirement.
#[must_use]
pub fn allows(need: Requirement, role: Option<Role>) -> bool {
    match need {
        Requirement::Nothing | Requirement::Anyone => true,
        Requirement::Role(least) => role.is_some_and(|role| role >= least),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_route_stands_twice() {
        for (index, rule) in RULES.iter().enumerate() {
            let again =
                RULES[index + 1..].iter().any(|other| (other.method, other.path) == (rule.method, rule.path));
            assert!(!again, "{rule:?}");
        }
    }

    #[test]
    fn higher_roles_may_more() {
        for rule in RULES {
            let allowed: Vec<bool> = [None, Some(Role::Viewer), Some(Role::Editor), Some(Role::Admin)]
                .map(|role| allows(rule.need, role))
                .into();
            assert!(allowed.is_sorted() && allowed[3], "{rule:?}");
        }
    }

    #[test]
    fn nothing_is_changed_without_a_role_but_the_session() {
        for rule in RULES.iter().filter(|rule| rule.method != "GET" && allows(rule.need, None)) {
            assert!(matches!(rule.path, "/admin/login" | "/admin/api/v1/session"), "{rule:?}");
        }
        for rule in RULES.iter().filter(|rule| rule.method != "GET" && allows(rule.need, Some(Role::Viewer)))
        {
            let harmless = ["login", "logout", "session", "predict", "preview"];
            assert!(harmless.iter().any(|end| rule.path.ends_with(end)), "{rule:?}");
        }
        for rule in RULES.iter().filter(|rule| rule.method != "GET") {
            let people = ["keys", "tenants", "users"].iter().any(|part| rule.path.contains(part));
            assert!(!people || rule.need == ADMIN, "{rule:?}");
        }
    }

    #[test]
    fn head_is_as_get() {
        assert_eq!(find(&Method::HEAD, "/admin/scenes"), find(&Method::GET, "/admin/scenes"));
        assert!(find(&Method::PUT, "/admin/scenes").is_none());
    }
}
