//! Hidden states that were examined once.

use baton_engine::engine::Hidden;

/// Hidden states, and whether each value is a finite number. Whoever makes the value examines it, outside
/// of the core: the thread that decodes a frame, or the one that computes.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct States {
    hidden: Hidden,
    finite: bool,
}

impl States {
    /// Examines every value once.
    pub fn of(hidden: Hidden) -> Self {
        let finite = hidden.values.iter().all(|value| value.is_finite());
        Self { hidden, finite }
    }

    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        self.hidden.rows
    }

    /// Returns the values per row.
    pub fn width(&self) -> usize {
        self.hidden.width
    }

    /// Returns whether every value is a finite number.
    pub fn finite(&self) -> bool {
        self.finite
    }

    /// Returns the values.
    pub fn hidden(&self) -> &Hidden {
        &self.hidden
    }

    /// Returns the values, without copying them.
    pub fn into_hidden(self) -> Hidden {
        self.hidden
    }

    /// Returns whether shape and bits are the same. NaN equals itself here, and zero does not equal minus
    /// zero.
    pub fn same_bits(&self, other: &Self) -> bool {
        let (a, b) = (&self.hidden, &other.hidden);
        let bits = |hidden: &Hidden| hidden.values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        (a.rows, a.width) == (b.rows, b.width) && bits(a) == bits(b)
    }

    /// Returns whether the shape is the same, and every row as near as a GPU computes to what a CPU computes:
    /// within [`GPU_TOLERANCE`] times the row's largest value.
    pub fn is_near(&self, other: &Self) -> bool {
        let (a, b) = (&self.hidden, &other.hidden);
        let rows = || a.values.chunks(a.width.max(1)).zip(b.values.chunks(b.width.max(1)));
        let near = |(a, b): (&[f32], &[f32])| {
            let top = b.iter().fold(0.0f32, |top, value| top.max(value.abs()));
            // False also for values that are no numbers.
            a.iter().zip(b).all(|(a, b)| (a - b).abs() <= GPU_TOLERANCE * top)
        };
        (a.rows, a.width) == (b.rows, b.width) && rows().all(near)
    }
}

/// Activations are rounded to bytes before a product. A last bit that differs before that can change a byte,
/// and so a result by a 127th of its largest part; a layer adds many such results.
const GPU_TOLERANCE: f32 = 0.02;

#[cfg(test)]
mod tests {
    use super::*;

    fn states(values: &[f32]) -> States {
        States::of(Hidden { rows: 1, width: values.len(), values: values.to_vec() })
    }

    #[test]
    fn values_that_are_no_number_are_found() {
        assert!(states(&[0.0, -1.0, f32::MAX]).finite());
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert!(!states(&[1.0, value]).finite(), "{value}");
        }
    }

    #[test]
    fn near_is_within_a_part_of_the_largest_value() {
        let want = states(&[10.0, 0.0, -1.0]);
        assert!(states(&[10.1, 0.19, -0.81]).is_near(&want));
        assert!(!states(&[10.0, 0.21, -1.0]).is_near(&want));
        assert!(!states(&[10.0, f32::NAN, -1.0]).is_near(&want));
        assert!(!states(&[10.0, 0.0]).is_near(&want));
    }

    #[test]
    fn bits_are_compared_and_not_values() {
        assert!(states(&[f32::NAN]).same_bits(&states(&[f32::NAN])));
        assert!(!states(&[0.0]).same_bits(&states(&[-0.0])));
        assert!(!states(&[1.0]).same_bits(&states(&[1.0, 1.0])));
        let (one, two) = (Hidden { rows: 1, width: 2, values: vec![1.0; 2] }, vec![1.0; 2]);
        let two = Hidden { rows: 2, width: 1, values: two };
        assert!(!States::of(one).same_bits(&States::of(two)));
    }
}
