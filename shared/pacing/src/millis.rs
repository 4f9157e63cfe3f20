//! The unit of time in this package: milliseconds since an origin that the caller chooses, or a span of time.

use std::fmt;
use std::ops::{Add, AddAssign, Mul, Sub};
use std::time::Duration;

/// Milliseconds as `f64`: a point on the caller's monotonic clock, or a difference of two.
///
/// The value is not checked and may be any `f64`. Code that takes numbers from outside calls
/// [`Millis::is_finite`].
#[derive(Debug, Clone, Copy, Default, PartialEq, PartialOrd)]
pub struct Millis(f64);

impl Millis {
    /// A span of zero, or the origin.
    pub const ZERO: Self = Self(0.0);

    /// Makes a value of `ms` milliseconds.
    #[must_use]
    pub const fn new(ms: f64) -> Self {
        Self(ms)
    }

    /// Returns the number of milliseconds.
    #[must_use]
    pub const fn as_f64(self) -> f64 {
        self.0
    }

    /// Returns whether the value is a finite number.
    #[must_use]
    pub const fn is_finite(self) -> bool {
        self.0.is_finite()
    }

    /// Returns the larger of both.
    #[must_use]
    pub const fn max(self, other: Self) -> Self {
        Self(self.0.max(other.0))
    }

    /// Returns the smaller of both.
    #[must_use]
    pub const fn min(self, other: Self) -> Self {
        Self(self.0.min(other.0))
    }

    /// Converts the span to a [`Duration`], for timers. Negative, infinite and NaN spans become zero.
    #[must_use]
    pub fn to_duration(self) -> Duration {
        Duration::try_from_secs_f64(self.0 / 1e3).unwrap_or(Duration::ZERO)
    }
}

impl From<Duration> for Millis {
    fn from(span: Duration) -> Self {
        Self(span.as_secs_f64() * 1e3)
    }
}

impl Add for Millis {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

impl AddAssign for Millis {
    fn add_assign(&mut self, other: Self) {
        self.0 += other.0;
    }
}

impl Sub for Millis {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0 - other.0)
    }
}

impl Mul<f64> for Millis {
    type Output = Self;
    fn mul(self, factor: f64) -> Self {
        Self(self.0 * factor)
    }
}

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} ms", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_become_durations_and_back() {
        assert_eq!(Millis::new(12.5).to_duration(), Duration::from_micros(12_500));
        assert_eq!(Millis::from(Duration::from_millis(40)), Millis::new(40.0));
        for odd in [-1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(Millis::new(odd).to_duration(), Duration::ZERO, "{odd}");
        }
    }
}
