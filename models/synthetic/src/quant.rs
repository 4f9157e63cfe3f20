//! Chooses the format of each matrix of a model: one format for all, or a mixture of llama.cpp.
//!
//! Source of the mixture and of the fallbacks: `llama_tensor_get_type_impl` and `tensor_type_fallback` of
//! llama.cpp's `src/llama-quant.cpp`.

use baton_kernels_cpu::Format;

/// Formats of a model's matrices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quant {
    /// One format for all matrices. Rows that are not whole blocks of 256 values get another format, as in
    /// llama.cpp.
    Pure(Format),
    /// Q4_K_M as `llama-quantize` makes it: Q4_K, with Q6_K for the projection to logits and for the value
    /// and down projections of some layers.
    Q4KM,
}

impl From<Format> for Quant {
    fn from(format: Format) -> Self {
        Self::Pure(format)
    }
}

impl Quant {
    /// Returns the name as llama.cpp writes it in file names.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pure(format) => format.name(),
            Self::Q4KM => "Q4_K_M",
        }
    }

    /// Finds the mixture or format called `name`, ignoring case.
    pub fn find(name: &str) -> Option<Self> {
        let all = Format::ALL.into_iter().map(Self::Pure).chain([Self::Q4KM]);
        all.into_iter().find(|quant| quant.name().eq_ignore_ascii_case(name))
    }

    /// Returns the format of most matrices.
    const fn base(self) -> Format {
        match self {
            Self::Pure(format) => format,
            Self::Q4KM => Format::Q4K,
        }
    }

    /// Returns the format of the matrix `name` with rows of `cols` values, in a model of `n_layers` layers.
    pub(crate) fn of(self, name: &str, cols: u32, n_layers: u32, tied: bool) -> Format {
        let larger = self == Self::Q4KM && is_larger(name, n_layers, tied);
        let format = if larger { Format::Q6K } else { self.base() };
        if cols.is_multiple_of(256) { format } else { fallback(format) }
    }
}

/// Returns the replacement for a format whose blocks are longer than the row or do not divide it.
fn fallback(format: Format) -> Format {
    let name = match format.name() {
        "Q2_K" | "Q3_K" => "Q4_0",
        "Q4_K" => "Q5_0",
        "Q5_K" => "Q5_1",
        "Q6_K" => "Q8_0",
        "IQ1_S" | "IQ1_M" | "IQ2_XXS" | "IQ2_XS" | "IQ2_S" | "IQ3_XXS" | "IQ3_S" | "IQ4_XS" => "IQ4_NL",
        "TQ1_0" | "TQ2_0" => "Q4_0",
        name => name,
    };
    Format::ALL.into_iter().find(|other| other.name() == name).unwrap_or(format)
}

/// Returns whether Q4_K_M stores the tensor as Q6_K.
fn is_larger(name: &str, n_layers: u32, tied: bool) -> bool {
    let Some((layer, tensor)) = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) else {
        return name == "output.weight" || (tied && name == "token_embd.weight");
    };
    let Ok(layer) = layer.parse::<u32>() else { return false };
    let eighth = n_layers / 8;
    let chosen = layer < eighth || layer >= 7 * n_layers / 8 || (layer - eighth) % 3 == 2;
    chosen && matches!(tensor, "attn_v.weight" | "ffn_down.weight")
}
