//! The keys of a mixture of experts.

use super::keys::{COUNT_MAX, Keys};
use super::{ConfigError, ExpertGroups, Experts};
use crate::family::{ExpertRule, Family, Gating, Presence, SharedRule};

impl Keys<'_> {
    pub(super) fn experts(
        &self,
        family: &Family,
        d_ff: usize,
        n_layers: usize,
    ) -> Result<Option<Experts>, ConfigError> {
        let given = self.opt_u32("expert_count")?.filter(|count| *count > 0);
        let rule = match (family.experts, given) {
            (None, Some(count)) => {
                let key = self.key("expert_count");
                return Err(ConfigError::Unsupported { key, value: count.to_string() });
            }
            (None, None) => return Ok(None),
            (Some(rule), None) if rule.presence != Presence::Required => return Ok(None),
            (Some(rule), _) => rule,
        };
        let count = self.count("expert_count")?;
        let used = self.count("expert_used_count")?;
        self.check("expert_used_count", used, used <= count, || format!("at most the {count} experts"))?;
        let own_width = if rule.own_width { self.opt_count("expert_feed_forward_length")? } else { None };
        let width = match own_width {
            Some(width) => width,
            None if rule.own_width => (d_ff / used).max(1),
            None => d_ff,
        };
        let plain = Experts {
            count,
            used,
            d_ff: width,
            shared_d_ff: self.shared_width(&rule, d_ff, width)?,
            gating: rule.gating,
            normalized: rule.normalized,
            scale: 1.0,
            groups: None,
            first_layer: 0,
        };
        if rule.stated { self.stated_experts(plain, n_layers).map(Some) } else { Ok(Some(plain)) }
    }

    /// Returns the width of the shared expert, if there is one.
    fn shared_width(&self, rule: &ExpertRule, d_ff: usize, own: usize) -> Result<Option<usize>, ConfigError> {
        let given = self.opt_u32("expert_shared_feed_forward_length")?.filter(|width| *width > 0);
        let given = given.map(|_| self.count("expert_shared_feed_forward_length")).transpose()?;
        match rule.shared {
            SharedRule::Never => Ok(None),
            SharedRule::Gated => Ok(Some(given.unwrap_or(d_ff))),
            SharedRule::Plain if given.is_some() || !rule.stated => Ok(given),
            SharedRule::Plain => {
                let shared = self.opt_u32("expert_shared_count")?.filter(|shared| *shared > 0);
                let Some(shared) = shared else { return Ok(None) };
                let width = own.checked_mul(shared as usize).filter(|width| *width <= COUNT_MAX as usize);
                width.map(Some).ok_or_else(|| {
                    let want = format!("at most {}", COUNT_MAX as usize / own);
                    self.out_of_range("expert_shared_count", shared.to_string(), want)
                })
            }
        }
    }

    /// Adds what files of some families say themselves.
    fn stated_experts(&self, plain: Experts, n_layers: usize) -> Result<Experts, ConfigError> {
        let gating = match self.opt_u32("expert_gating_func")? {
            None | Some(0) => plain.gating,
            Some(1) => Gating::Softmax,
            Some(2) => Gating::Sigmoid,
            Some(3) => Gating::ChosenSoftmax,
            Some(other) => {
                let key = self.key("expert_gating_func");
                return Err(ConfigError::Unsupported { key, value: other.to_string() });
            }
        };
        let first_layer = self.opt_u32("leading_dense_block_count")?.unwrap_or(0) as usize;
        self.check("leading_dense_block_count", first_layer, first_layer <= n_layers, || {
            format!("at most the {n_layers} layers")
        })?;
        let normalized = self.metadata.opt_bool(&self.key("expert_weights_norm"))?;
        Ok(Experts {
            gating,
            normalized: normalized.unwrap_or(plain.normalized),
            scale: self.positive_if(Presence::Optional, "expert_weights_scale")?.unwrap_or(1.0),
            groups: self.expert_groups(plain.count, plain.used)?,
            first_layer,
            ..plain
        })
    }

    fn expert_groups(&self, experts: usize, used: usize) -> Result<Option<ExpertGroups>, ConfigError> {
        let Some(count) = self.opt_u32("expert_group_count")?.filter(|count| *count > 1) else {
            return Ok(None);
        };
        let count = count as usize;
        // A group is ranked by its two best experts.
        let holds = experts.is_multiple_of(count) && experts / count >= 2;
        self.check("expert_group_count", count, holds, || {
            format!("a divisor of the {experts} experts, with two or more in each group")
        })?;
        let groups = ExpertGroups { count, used: self.count("expert_group_used_count")? };
        let holds = groups.used <= count && groups.used * (experts / count) >= used;
        self.check("expert_group_used_count", groups.used, holds, || {
            format!("at most the {count} groups, and enough for {used} experts")
        })?;
        Ok(Some(groups))
    }
}
