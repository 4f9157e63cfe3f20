//! Reads a text or something else, without the copies that an untagged enum makes.

use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};

/// A text, or a `T` that is a list or an object.
#[derive(Debug)]
pub(crate) enum TextOr<T> {
    /// The text.
    Text(String),
    /// A list or an object.
    Other(T),
}

/// What an object stands for.
pub(crate) trait FromObject<'de>: Sized {
    /// Reads the object.
    fn from_object<A: MapAccess<'de>>(fields: A) -> Result<Self, A::Error>;
}

/// One object in place of a list is the list's only item.
impl<'de, T: Deserialize<'de>> FromObject<'de> for Vec<T> {
    fn from_object<A: MapAccess<'de>>(fields: A) -> Result<Vec<T>, A::Error> {
        T::deserialize(MapAccessDeserializer::new(fields)).map(|item| vec![item])
    }
}

impl<'de, T: Deserialize<'de> + FromObject<'de>> Deserialize<'de> for TextOr<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<TextOr<T>, D::Error> {
        deserializer.deserialize_any(TextOrVisitor(PhantomData))
    }
}

struct TextOrVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de> + FromObject<'de>> Visitor<'de> for TextOrVisitor<T> {
    type Value = TextOr<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text, a list or an object, as the API's description says")
    }

    fn visit_str<E>(self, text: &str) -> Result<TextOr<T>, E> {
        Ok(TextOr::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<TextOr<T>, A::Error> {
        T::deserialize(SeqAccessDeserializer::new(items)).map(TextOr::Other)
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<TextOr<T>, A::Error> {
        T::from_object(fields).map(TextOr::Other)
    }
}
