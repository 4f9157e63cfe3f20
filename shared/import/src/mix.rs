//! Quantizations: which format each tensor gets.
//!
//! A name like `Q4_K_M` is a mix. Matrices that quantization hurts most (values, down projections, the
//! projection to logits) get more bits than the others, in the layers that matter most. The rules are those
//! of llama.cpp's `llama-quantize` without an importance matrix, so files have similar size and quality.

use std::fmt;
use std::str::FromStr;

use candle_core::quantized::GgmlDType;

/// The formats of a file's weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
#[allow(non_camel_case_types, reason = "the names under which these mixes are known")]
#[expect(missing_docs, reason = "the names say the number of bits; their rules are the module's")]
pub enum Quantization {
    F32,
    F16,
    BF16,
    Q8_0,
    Q6_K,
    Q5_K_M,
    Q5_K_S,
    Q5_1,
    Q5_0,
    Q4_K_M,
    Q4_K_S,
    Q4_1,
    Q4_0,
    Q3_K_L,
    Q3_K_M,
    Q3_K_S,
    Q2_K,
}

use Quantization as Q;

/// Name, main format of the weights, and number (`llama_ftype`) of each.
const TABLE: &[(Quantization, &str, GgmlDType, u32)] = &[
    (Q::F32, "F32", GgmlDType::F32, 0),
    (Q::F16, "F16", GgmlDType::F16, 1),
    (Q::BF16, "BF16", GgmlDType::BF16, 32),
    (Q::Q8_0, "Q8_0", GgmlDType::Q8_0, 7),
    (Q::Q6_K, "Q6_K", GgmlDType::Q6K, 18),
    (Q::Q5_K_M, "Q5_K_M", GgmlDType::Q5K, 17),
    (Q::Q5_K_S, "Q5_K_S", GgmlDType::Q5K, 16),
    (Q::Q5_1, "Q5_1", GgmlDType::Q5_1, 9),
    (Q::Q5_0, "Q5_0", GgmlDType::Q5_0, 8),
    (Q::Q4_K_M, "Q4_K_M", GgmlDType::Q4K, 15),
    (Q::Q4_K_S, "Q4_K_S", GgmlDType::Q4K, 14),
    (Q::Q4_1, "Q4_1", GgmlDType::Q4_1, 3),
    (Q::Q4_0, "Q4_0", GgmlDType::Q4_0, 2),
    (Q::Q3_K_L, "Q3_K_L", GgmlDType::Q3K, 13),
    (Q::Q3_K_M, "Q3_K_M", GgmlDType::Q3K, 12),
    (Q::Q3_K_S, "Q3_K_S", GgmlDType::Q3K, 11),
    (Q::Q2_K, "Q2_K", GgmlDType::Q2K, 10),
];

/// The error for a name that is not a quantization.
#[derive(Debug, thiserror::Error)]
#[error("quantization `{found}` is not known; these are: {known}")]
pub struct UnknownQuantization {
    found: String,
    known: String,
}

impl Quantization {
    /// Returns every quantization, most bits first.
    pub fn all() -> impl Iterator<Item = Quantization> {
        TABLE.iter().map(|row| row.0)
    }

    /// Returns `general.file_type` of the file.
    pub(crate) fn file_type(self) -> u32 {
        self.row().3
    }

    fn row(self) -> &'static (Quantization, &'static str, GgmlDType, u32) {
        TABLE.iter().find(|row| row.0 == self).expect("the table has a row for each")
    }
}

impl fmt::Display for Quantization {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.row().1)
    }
}

impl FromStr for Quantization {
    type Err = UnknownQuantization;

    fn from_str(name: &str) -> Result<Quantization, UnknownQuantization> {
        let found = TABLE.iter().find(|row| row.1.eq_ignore_ascii_case(name));
        found.map(|row| row.0).ok_or_else(|| UnknownQuantization {
            found: name.chars().take(40).collect(),
            known: TABLE.iter().map(|row| row.1).collect::<Vec<_>>().join(", "),
        })
    }
}

/// The role of a tensor, on which its format depends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Norms, biases, routers, divisors: always F32.
    Exact,
    /// The embedding table.
    Embedding,
    /// The projection to logits, also if it is the embedding table.
    Output,
    /// Key projection.
    AttnK,
    /// Value projection, or one matrix for query, key and value: `llama-quantize` treats both alike.
    AttnV,
    /// Projection of the attention output.
    AttnOutput,
    /// Down projection of a feed-forward layer or an expert.
    FfnDown,
    /// Any other matrix.
    Other,
}

/// The parts of a model's shape that the rules use.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) n_layers: u32,
    pub(crate) n_heads: u32,
    pub(crate) n_kv_heads: u32,
    /// Experts of a layer; 0 if layers are dense.
    pub(crate) n_experts: u32,
    /// Whether the family's model of 80 layers gives values more bits.
    pub(crate) large: bool,
}

impl Shape {
    fn n_gqa(&self) -> u32 {
        self.n_heads / self.n_kv_heads.max(1)
    }
}

/// Whether the layer is in the first or last eighth, or every third between.
fn use_more_bits(layer: u32, n_layers: u32) -> bool {
    layer < n_layers / 8 || layer >= 7 * n_layers / 8 || (layer - n_layers / 8) % 3 == 2
}

/// Returns the format of a tensor of `cols` columns in layer `layer`.
pub(crate) fn format(mix: Quantization, role: Role, layer: u32, cols: u64, shape: &Shape) -> GgmlDType {
    let default = mix.row().2;
    if role == Role::Exact {
        return GgmlDType::F32;
    }
    if matches!(mix, Q::F32 | Q::F16 | Q::BF16) {
        return default;
    }
    let wanted = match role {
        Role::Output if !cols.is_multiple_of(default.block_size() as u64) => GgmlDType::Q8_0,
        Role::Output if mix != Q::Q8_0 => GgmlDType::Q6K,
        Role::AttnV => value_format(mix, layer, shape, default),
        Role::AttnK if shape.n_experts == 8 => GgmlDType::Q8_0,
        Role::AttnOutput => output_format(mix, shape, default),
        Role::FfnDown => down_format(mix, layer, shape, default),
        _ => default,
    };
    fit(wanted, cols)
}

fn value_format(mix: Quantization, layer: u32, shape: &Shape, default: GgmlDType) -> GgmlDType {
    let more = use_more_bits(layer, shape.n_layers);
    let wanted = match mix {
        Q::Q2_K if shape.n_gqa() >= 4 => GgmlDType::Q4K,
        Q::Q2_K => GgmlDType::Q3K,
        Q::Q3_K_M if layer < 2 => GgmlDType::Q5K,
        Q::Q3_K_M => GgmlDType::Q4K,
        Q::Q3_K_L => GgmlDType::Q5K,
        Q::Q4_K_M | Q::Q5_K_M if more => GgmlDType::Q6K,
        Q::Q4_K_S if layer < 4 => GgmlDType::Q5K,
        _ => default,
    };
    match wanted {
        _ if shape.n_experts == 8 => GgmlDType::Q8_0,
        GgmlDType::Q3K | GgmlDType::Q4K if shape.large => GgmlDType::Q5K,
        wanted => wanted,
    }
}

fn output_format(mix: Quantization, shape: &Shape, default: GgmlDType) -> GgmlDType {
    match mix {
        Q::Q2_K | Q::Q3_K_S | Q::Q3_K_M | Q::Q4_K_S | Q::Q4_K_M if shape.n_experts == 8 => GgmlDType::Q5K,
        _ if shape.n_experts == 8 => default,
        Q::Q2_K => GgmlDType::Q3K,
        Q::Q3_K_M => GgmlDType::Q4K,
        Q::Q3_K_L => GgmlDType::Q5K,
        _ => default,
    }
}

fn down_format(mix: Quantization, layer: u32, shape: &Shape, default: GgmlDType) -> GgmlDType {
    let n_layers = shape.n_layers;
    match mix {
        Q::Q2_K => GgmlDType::Q3K,
        Q::Q3_K_M if layer < n_layers / 16 => GgmlDType::Q5K,
        Q::Q3_K_M => GgmlDType::Q4K,
        Q::Q3_K_L => GgmlDType::Q5K,
        Q::Q4_K_M | Q::Q5_K_M if use_more_bits(layer, n_layers) => GgmlDType::Q6K,
        Q::Q4_K_S if layer < n_layers / 8 => GgmlDType::Q5K,
        _ => default,
    }
}

/// Returns the wanted format if rows of `cols` columns are whole blocks of it, else one with smaller blocks.
fn fit(wanted: GgmlDType, cols: u64) -> GgmlDType {
    let fits = |format: GgmlDType| cols.is_multiple_of(format.block_size() as u64);
    let smaller = match wanted {
        GgmlDType::Q2K | GgmlDType::Q3K => GgmlDType::Q4_0,
        GgmlDType::Q4K => GgmlDType::Q5_0,
        GgmlDType::Q5K => GgmlDType::Q5_1,
        GgmlDType::Q6K => GgmlDType::Q8_0,
        other => other,
    };
    [wanted, smaller].into_iter().find(|&format| fits(format)).unwrap_or(GgmlDType::F16)
}

/// Returns ggml's number of a format.
pub(crate) fn ggml_type(format: GgmlDType) -> u32 {
    match format {
        GgmlDType::F32 => 0,
        GgmlDType::F16 => 1,
        GgmlDType::Q4_0 => 2,
        GgmlDType::Q4_1 => 3,
        GgmlDType::Q5_0 => 6,
        GgmlDType::Q5_1 => 7,
        GgmlDType::Q8_0 => 8,
        GgmlDType::Q8_1 => 9,
        GgmlDType::Q2K => 10,
        GgmlDType::Q3K => 11,
        GgmlDType::Q4K => 12,
        GgmlDType::Q5K => 13,
        GgmlDType::Q6K => 14,
        GgmlDType::Q8K => 15,
        GgmlDType::BF16 => 30,
    }
}

/// Returns ggml's name of a format.
pub(crate) fn format_name(format: GgmlDType) -> &'static str {
    match format {
        GgmlDType::F32 => "F32",
        GgmlDType::F16 => "F16",
        GgmlDType::BF16 => "BF16",
        GgmlDType::Q4_0 => "Q4_0",
        GgmlDType::Q4_1 => "Q4_1",
        GgmlDType::Q5_0 => "Q5_0",
        GgmlDType::Q5_1 => "Q5_1",
        GgmlDType::Q8_0 => "Q8_0",
        GgmlDType::Q8_1 => "Q8_1",
        GgmlDType::Q2K => "Q2_K",
        GgmlDType::Q3K => "Q3_K",
        GgmlDType::Q4K => "Q4_K",
        GgmlDType::Q5K => "Q5_K",
        GgmlDType::Q6K => "Q6_K",
        GgmlDType::Q8K => "Q8_K",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Shape = Shape { n_layers: 16, n_heads: 32, n_kv_heads: 8, n_experts: 0, large: false };

    /// Returns the formats of layers 0 to 15, one character per layer: the digit of Q4_K, Q5_K, Q6_K, Q8_0.
    fn letters(mix: Quantization, role: Role, shape: &Shape) -> String {
        let digit = |layer| &format_name(format(mix, role, layer, 2048, shape))[1..2];
        (0..shape.n_layers).map(digit).collect()
    }

    /// Recorded from files of llama-quantize for a model of 16 layers; 4 query heads per key head follow from
    /// its rules.
    #[test]
    fn mixes_are_those_of_llama_quantize() {
        assert_eq!(letters(Q::Q4_K_M, Role::AttnV, &SMALL), "6644644644644666");
        assert_eq!(letters(Q::Q4_K_M, Role::FfnDown, &SMALL), "6644644644644666");
        assert_eq!(letters(Q::Q5_K_M, Role::AttnV, &SMALL), "6655655655655666");
        assert_eq!(letters(Q::Q4_K_S, Role::AttnV, &SMALL), "5555444444444444");
        assert_eq!(letters(Q::Q4_K_S, Role::FfnDown, &SMALL), "5544444444444444");
        assert_eq!(letters(Q::Q3_K_M, Role::FfnDown, &SMALL), "5444444444444444");
        assert_eq!(letters(Q::Q2_K, Role::AttnV, &SMALL), "4".repeat(16));
        assert_eq!(letters(Q::Q4_K_M, Role::Other, &SMALL), "4".repeat(16));
    }

    #[track_caller]
    fn check(mix: Quantization, role: Role, cols: u64, want: &str) {
        assert_eq!(format_name(format(mix, role, 5, cols, &SMALL)), want, "{mix} {role:?} {cols}");
    }

    #[test]
    fn rows_that_are_no_whole_blocks_get_smaller_ones() {
        check(Q::Q4_K_M, Role::Other, 256, "Q4_K");
        check(Q::Q4_K_M, Role::Other, 96, "Q5_0");
        check(Q::Q5_K_M, Role::Other, 96, "Q5_1");
        check(Q::Q3_K_M, Role::Other, 96, "Q4_0");
        check(Q::Q6_K, Role::Other, 96, "Q8_0");
        check(Q::Q4_K_M, Role::Other, 100, "F16");
        check(Q::Q8_0, Role::Other, 100, "F16");
        check(Q::Q4_K_M, Role::Output, 256, "Q6_K");
        check(Q::Q4_K_M, Role::Output, 96, "Q8_0");
        check(Q::Q8_0, Role::Output, 256, "Q8_0");
        check(Q::Q4_0, Role::Output, 256, "Q6_K");
        check(Q::F16, Role::Output, 100, "F16");
        check(Q::Q4_K_M, Role::Exact, 256, "F32");
    }

    #[test]
    fn eight_experts_get_more_bits_for_attention() {
        let shape = Shape { n_experts: 8, ..SMALL };
        assert_eq!(format(Q::Q4_K_M, Role::AttnV, 5, 256, &shape), GgmlDType::Q8_0);
        assert_eq!(format(Q::Q4_K_M, Role::AttnK, 5, 256, &shape), GgmlDType::Q8_0);
        assert_eq!(format(Q::Q4_K_M, Role::AttnOutput, 5, 256, &shape), GgmlDType::Q5K);
        assert_eq!(format(Q::Q4_K_M, Role::FfnDown, 3, 256, &shape), GgmlDType::Q4K);
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        for mix in Quantization::all() {
            assert_eq!(mix.to_string().to_lowercase().parse::<Quantization>().unwrap(), mix);
        }
        let err = "Q9".parse::<Quantization>().unwrap_err().to_string();
        assert!(err.starts_with("quantization `Q9` is not known; these are: F32, F16, BF16, Q8_0"), "{err}");
    }
}
