//! Readers of bodies, paths and queries, whose errors are a [`Problem`].

use axum::extract::{Extension, FromRequestParts, Path};
use axum::http::header;
use axum::http::request::Parts;
use baton_protocol::check_shape;
use serde::de::DeserializeOwned;

use crate::admin::guard::RawBody;
use crate::admin::problem::{Kind, Problem};

/// A JSON body. An error names the field at which the reader stopped.
pub(super) struct JsonBody<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for JsonBody<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<JsonBody<T>, Problem> {
        let kind =
            parts.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let kind = kind.split(';').next().unwrap_or_default().trim();
        if !kind.eq_ignore_ascii_case("application/json") {
            return Err(Problem::malformed(None, "the content type must be `application/json`"));
        }
        let body = Extension::<RawBody>::from_request_parts(parts, state).await;
        let Extension(RawBody(bytes)) =
            body.map_err(|_| Problem::new(Kind::Internal, "the body was not read"))?;
        parse(&bytes).map(JsonBody)
    }
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    check_shape(bytes).map_err(|err| Problem::malformed(None, err.to_string()))?;
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let read = serde_path_to_error::deserialize(&mut reader).map_err(|err| {
        let path = err.path().to_string();
        // `.` is the whole body and `?` an unknown place, so neither is a field.
        let field = (path != "." && path != "?").then_some(path);
        Problem::malformed(field, err.inner().to_string())
    })?;
    reader.end().map_err(|err| Problem::malformed(None, err.to_string()))?;
    Ok(read)
}

/// The parameters of a path.
pub(super) struct PathText<T>(pub(super) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for PathText<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<PathText<T>, Problem> {
        let path = Path::<T>::from_request_parts(parts, state).await;
        path.map(|Path(path)| PathText(path)).map_err(|err| Problem::new(Kind::NotFound, err.body_text()))
    }
}

/// The query of a URL.
pub(super) struct QueryText<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for QueryText<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<QueryText<T>, Problem> {
        let query = axum::extract::Query::<T>::from_request_parts(parts, state).await;
        query.map(|query| QueryText(query.0)).map_err(|err| {
            let text = err.body_text();
            Problem::malformed(parameter_of(&text), text)
        })
    }
}

/// Returns the parameter that the error of a query names: `Failed to ...: NAME: why`.
fn parameter_of(text: &str) -> Option<String> {
    let name = text.split(": ").nth(1)?;
    let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    (is_name && text.matches(": ").count() > 1).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::view::TenantInput;
    use crate::scene::SceneSettings;

    #[test]
    fn the_place_of_an_error_is_named() {
        let field =
            |text: &str| parse::<TenantInput>(text.as_bytes()).unwrap_err().field_name().map(str::to_owned);
        assert_eq!(field(r#"{"weight":"ten"}"#).as_deref(), Some("weight"));
        assert_eq!(field(r#"{"weight":-1}"#).as_deref(), Some("weight"));
        assert_eq!(field(r#"{"weight":1,"colour":2}"#).as_deref(), Some("colour"));
        assert_eq!(field("{"), None);
        assert!(parse::<TenantInput>(br#"{"weight":1} x"#).is_err());
        assert!(parse::<TenantInput>(br#"{"weight":1}"#).is_ok());
        assert!(parse::<SceneSettings>(br#"{"ratio":1e400}"#).is_err());
    }
}
