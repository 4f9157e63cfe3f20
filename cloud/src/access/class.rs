//! Device classes: the costs of devices of one kind, if somebody has set them.

use super::{AccessError, check_label};

/// The largest cost, in milliseconds.
const MS_MAX: f64 = 60_000.0;

/// The label of a device class, and the costs of its devices.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DeviceClassSettings {
    /// Its name for people.
    pub label: String,
    /// Costs that are used instead of those that devices report; `None` to use the reported ones.
    pub cost: Option<ClassCost>,
}

/// The costs of one device of a class, as the optimizer uses them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ClassCost {
    /// `k_d`: milliseconds for one prompt token.
    pub prefill_ms_per_token: f64,
    /// `q_d`: milliseconds for one prompt token and each one before it.
    pub prefill_ms_per_token2: f64,
    /// `TPOT_d`: milliseconds for one answer token.
    pub decode_ms: f64,
}

/// A device class as it is stored.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceClass {
    /// Its name in requests.
    pub id: String,
    /// Increased by 1 at every change.
    pub revision: u64,
    /// Its label and costs.
    pub settings: DeviceClassSettings,
    /// When it was last changed, in milliseconds since 1970.
    pub updated_ms: i64,
    /// Who changed it last.
    pub updated_by: String,
}

impl DeviceClassSettings {
    /// Checks every bound.
    ///
    /// # Errors
    /// [`AccessError`] for the first value that is out of its bounds.
    pub fn check(&self) -> Result<(), AccessError> {
        check_label("label", &self.label)?;
        let Some(cost) = self.cost else { return Ok(()) };
        let number = |field, value: f64, want| AccessError::Number { field, value: value.to_string(), want };
        for (field, value) in
            [("prefill_ms_per_token", cost.prefill_ms_per_token), ("decode_ms", cost.decode_ms)]
        {
            if !(value > 0.0 && value <= MS_MAX) {
                return Err(number(field, value, "over 0 and at most 60000"));
            }
        }
        if !(0.0..=MS_MAX).contains(&cost.prefill_ms_per_token2) {
            return Err(number("prefill_ms_per_token2", cost.prefill_ms_per_token2, "0 to 60000"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_bounded() {
        let cost = ClassCost { prefill_ms_per_token: 2.0, prefill_ms_per_token2: 0.0, decode_ms: 40.0 };
        let check = |cost: ClassCost, want: Option<&str>| {
            let settings = DeviceClassSettings { label: "a".into(), cost: Some(cost) };
            assert_eq!(settings.check().err().map(|err| err.to_string()).as_deref(), want);
        };
        check(cost, None);
        check(
            ClassCost { decode_ms: 0.0, ..cost },
            Some("field `decode_ms` is 0, must be over 0 and at most 60000"),
        );
        check(
            ClassCost { prefill_ms_per_token: f64::NAN, ..cost },
            Some("field `prefill_ms_per_token` is NaN, must be over 0 and at most 60000"),
        );
        check(
            ClassCost { prefill_ms_per_token2: -1.0, ..cost },
            Some("field `prefill_ms_per_token2` is -1, must be 0 to 60000"),
        );
    }
}
