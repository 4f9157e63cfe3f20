//! Handles fields that a type does not have.
//!
//! A client that knows more fields than this service may send them with null: that asks for nothing. Any
//! other value is refused, so that nothing that a client asks for is ignored.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

/// The other fields of an object, flattened into its type. Reading fails at the first one that is not null.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NoOther;

impl<'de> Deserialize<'de> for NoOther {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<NoOther, D::Error> {
        deserializer.deserialize_map(NoOtherVisitor)
    }
}

struct NoOtherVisitor;

impl<'de> Visitor<'de> for NoOtherVisitor {
    type Value = NoOther;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no other fields")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<NoOther, A::Error> {
        while let Some(name) = fields.next_key::<String>()? {
            if fields.next_value::<Option<IgnoredAny>>()?.is_some() {
                // The same wording as serde's own error, so that one function turns both into a field's name.
                return Err(A::Error::custom(format_args!("unknown field `{name}`")));
            }
        }
        Ok(NoOther)
    }
}

/// The schema of an unknown field: it must be null.
pub(crate) struct MustBeNull;

impl PartialSchema for MustBeNull {
    fn schema() -> RefOr<Schema> {
        let null = ObjectBuilder::new().schema_type(Type::Null);
        null.description(Some("A field that this service does not know must be null.")).into()
    }
}

impl ToSchema for MustBeNull {
    fn name() -> Cow<'static, str> {
        Cow::Borrowed("MustBeNull")
    }
}
