//! The keys of latent attention.

use super::keys::Keys;
use super::{ConfigError, Latent};

impl Keys<'_> {
    pub(super) fn latent(&self, n_heads: usize, n_kv_heads: usize) -> Result<Latent, ConfigError> {
        let kv_rank = self.count("attention.kv_lora_rank")?;
        let q_rank = self.opt_u32("attention.q_lora_rank")?.filter(|rank| *rank > 0);
        let q_rank = q_rank.map(|rank| self.in_count_range("attention.q_lora_rank", rank)).transpose()?;
        let d_turned = self.count("rope.dimension_count")?;
        self.check("rope.dimension_count", d_turned, d_turned.is_multiple_of(2), || "even".to_owned())?;
        // Newer files state the widths of the heads apart from those of the cache.
        let own = self.opt_u32("attention.key_length_mla")?.filter(|width| *width > 0);
        let absorbed = own.is_some();
        let [key, value] = if absorbed {
            ["attention.key_length_mla", "attention.value_length_mla"]
        } else {
            ["attention.key_length", "attention.value_length"]
        };
        let (d_key, d_value) = (self.count(key)?, self.count(value)?);
        self.check(key, d_key, d_key > d_turned, || format!("> {d_turned}, the rotated dimensions"))?;
        let kv_heads = if absorbed { 1 } else { n_heads };
        self.check("attention.head_count_kv", n_kv_heads, n_kv_heads == kv_heads, || kv_heads.to_string())?;
        if absorbed {
            for (name, want) in [("key_length", kv_rank + d_turned), ("value_length", kv_rank)] {
                let name = format!("attention.{name}");
                let width = self.count(&name)?;
                self.check(&name, width, width == want, || format!("{want}, the width in the cache"))?;
            }
        } else {
            self.check(value, d_value, d_value <= d_key, || format!("at most {d_key}, the width of a key"))?;
            self.check(key, d_key, d_key.is_multiple_of(2), || "even".to_owned())?;
        }
        Ok(Latent { q_rank, kv_rank, d_plain: d_key - d_turned, d_turned, d_value, absorbed })
    }
}
