//! Ranges of the numbers on the wire.

/// A closed range of numbers that a field may take.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NumberRange {
    /// Smallest value allowed.
    pub min: f64,
    /// Largest value allowed.
    pub max: f64,
}

/// A number outside its range, or no number at all (NaN, infinite).
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("field `{field}` is {value}, must be {} to {}", .range.min, .range.max)]
pub struct OutOfRange {
    /// Path of the field, e.g. `device.decode_ms`.
    pub field: String,
    /// What was sent.
    pub value: f64,
    /// What is allowed.
    pub range: NumberRange,
}

impl NumberRange {
    /// The range from `min` to `max`, both included.
    pub const fn new(min: f64, max: f64) -> Self {
        Self { min, max }
    }

    /// Whether the value lies inside; NaN does not.
    pub fn contains(self, value: f64) -> bool {
        self.min <= value && value <= self.max
    }

    /// Refuses a value outside, naming its field.
    ///
    /// # Errors
    /// [`OutOfRange`] if the value lies outside or is not finite.
    pub fn check(self, field: &str, value: impl Into<f64>) -> Result<(), OutOfRange> {
        let value = value.into();
        if value.is_finite() && self.contains(value) {
            return Ok(());
        }
        Err(OutOfRange { field: field.to_owned(), value, range: self })
    }

    /// As [`NumberRange::check`]; a value that is not there is fine.
    ///
    /// # Errors
    /// [`OutOfRange`] if there is a value and it lies outside or is not finite.
    pub fn check_opt(self, field: &str, value: Option<impl Into<f64>>) -> Result<(), OutOfRange> {
        value.map_or(Ok(()), |value| self.check(field, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_outside_is_refused_with_field_value_and_limits() {
        let range = NumberRange::new(0.0, 2.0);
        assert!(range.check("temperature", 0.0).is_ok() && range.check("temperature", 2.0).is_ok());
        for value in [-0.001, 2.001, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert!(range.check("temperature", value).is_err(), "{value}");
        }
        let error = range.check("sampling.temperature", 3.0).unwrap_err();
        assert_eq!(error.to_string(), "field `sampling.temperature` is 3, must be 0 to 2");
        assert!(range.check_opt("x", None::<f64>).is_ok());
        assert!(range.check_opt("x", Some(9.0)).is_err());
    }
}
