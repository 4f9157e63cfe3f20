//! Checked ranges of the numbers on the wire.

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

/// A number type that a field can have. Limits are compared in the field's own type: a limit of 0.01 means
/// the nearest `f32` for an `f32` field, although that `f32` is below 0.01.
pub trait Bounded: Copy + Into<f64> {
    /// Returns the limit, rounded to this type.
    fn limit(limit: f64) -> f64;
    /// Returns the value for an error message, with the fewest digits that identify it in this type.
    fn shown(self) -> f64;
}

impl Bounded for f32 {
    fn limit(limit: f64) -> f64 {
        f64::from(limit as f32)
    }

    fn shown(self) -> f64 {
        // The text of a float always parses; the fallback only avoids a panic.
        self.to_string().parse().unwrap_or(f64::from(self))
    }
}

impl Bounded for f64 {
    fn limit(limit: f64) -> f64 {
        limit
    }

    fn shown(self) -> f64 {
        self
    }
}

impl Bounded for u32 {
    fn limit(limit: f64) -> f64 {
        limit
    }

    fn shown(self) -> f64 {
        self.into()
    }
}

impl NumberRange {
    /// Makes the range from `min` to `max`, both included.
    pub const fn new(min: f64, max: f64) -> Self {
        Self { min, max }
    }

    /// Checks whether the value lies inside; NaN never does.
    pub fn contains(self, value: f64) -> bool {
        self.min <= value && value <= self.max
    }

    /// Refuses a value outside the range; the error names its field.
    ///
    /// # Errors
    /// [`OutOfRange`] if the value lies outside or is not finite.
    pub fn check<N: Bounded>(self, field: &str, value: N) -> Result<(), OutOfRange> {
        let range = Self::new(N::limit(self.min), N::limit(self.max));
        if value.into().is_finite() && range.contains(value.into()) {
            return Ok(());
        }
        Err(OutOfRange { field: field.to_owned(), value: value.shown(), range: self })
    }

    /// As [`NumberRange::check`]; `None` is accepted.
    ///
    /// # Errors
    /// [`OutOfRange`] if there is a value and it lies outside or is not finite.
    pub fn check_opt<N: Bounded>(self, field: &str, value: Option<N>) -> Result<(), OutOfRange> {
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
        let infinite = NumberRange::new(0.0, f64::INFINITY);
        assert!(infinite.check("x", f64::MAX).is_ok() && infinite.check("x", f64::INFINITY).is_err());
        assert!(range.check_opt("x", None::<f64>).is_ok());
        assert!(range.check_opt("x", Some(9.0)).is_err());
    }

    #[test]
    fn limits_hold_in_the_fields_own_type() {
        let range = NumberRange::new(0.01, 0.9);
        for inside in [0.01f32, 0.9] {
            assert!(range.check("ratio", inside).is_ok(), "{inside}");
        }
        for outside in [0.01f32.next_down(), 0.9f32.next_up()] {
            assert!(range.check("ratio", outside).is_err(), "{outside}");
        }
        assert!(range.check("ratio", 0.01).is_ok() && range.check("ratio", 0.01f64.next_down()).is_err());
        let error = range.check("ratio", 1.2f32).unwrap_err();
        assert_eq!(error.to_string(), "field `ratio` is 1.2, must be 0.01 to 0.9");
    }
}
