//! Reads integers as clients write them: also `10.0`, which is how some write 10.

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, Unexpected};
use serde_json::Number;

/// The largest integer up to which floating point numbers are exact.
const EXACT_MAX: f64 = 9_007_199_254_740_992.0;

/// Reads an integer, or none for null. One above the range of `i64` keeps its bits, as seeds need.
pub(crate) fn whole<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<i64>, D::Error> {
    let Some(number) = Option::<Number>::deserialize(deserializer)? else { return Ok(None) };
    if let Some(integer) = number.as_i64().or(number.as_u64().map(|bits| bits as i64)) {
        return Ok(Some(integer));
    }
    let value = number.as_f64().unwrap_or(f64::NAN);
    if value.fract() == 0.0 && value.abs() <= EXACT_MAX {
        return Ok(Some(value as i64));
    }
    Err(D::Error::invalid_type(Unexpected::Float(value), &"an integer"))
}
