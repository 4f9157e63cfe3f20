//! The table of kernels: what each computes, its buffers, its numbers, and its grid.
//!
//! Buffers are arrays of 32-bit words. "ro" is read only, "rw" read and written. All matrices are row-major.
//! A kernel checks its bounds, since grids are rounded up. Kernels that take numbers one by one use
//! `i = (group.y * groups.x + group.x) * numbers + thread`, with `numbers` of [`crate::Tiles`].
//!
//! Bytes of weights are those of the file (`kernels/cpu/src/format.rs`), row after row. A row need not begin
//! at a multiple of four bytes; the buffer ends with up to three bytes of padding.

use baton_kernels_cpu::{Format, RopeStyle};

use crate::packed::PackedKv;

/// The most query vectors (tokens times heads) of one item of attention.
pub const ATTEND_VECTORS: usize = 16;

/// Token counts for which a set compiles [`Kernel::MatVec`] and [`Kernel::MatVecFloat`].
pub const TOKENS_EACH: [u32; 2] = [1, 4];

/// The most dimensions of a head that a variant of the attention kernels takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AttendWidth {
    /// Up to 64.
    D64,
    /// Up to 128.
    D128,
    /// Up to 256.
    D256,
    /// Up to 576: latent attention over short vectors.
    D576,
}

impl AttendWidth {
    /// Every variant, the narrowest first.
    pub const ALL: [Self; 4] = [Self::D64, Self::D128, Self::D256, Self::D576];

    /// Returns its dimensions.
    pub const fn dims(self) -> usize {
        match self {
            Self::D64 => 64,
            Self::D128 => 128,
            Self::D256 => 256,
            Self::D576 => 576,
        }
    }

    /// Returns the narrowest variant for heads of `d` dimensions, or `None` if there is none.
    pub fn of(d: usize) -> Option<Self> {
        Self::ALL.into_iter().find(|width| d <= width.dims())
    }
}

/// Operations on each number: see `rows.rs` and `exp.rs` of `kernels/cpu` for the formulas.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MapOp {
    /// `x *= a`.
    Scale,
    /// `x = a tanh(x / a)`.
    SoftCap,
    /// `x = 1 / (1 + e^-x)`; `a` is not used.
    Sigmoid,
}

impl MapOp {
    /// Every operation.
    pub const ALL: [Self; 3] = [Self::Scale, Self::SoftCap, Self::Sigmoid];
}

/// Operations on pairs of numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ZipOp {
    /// `x += y`.
    Add,
    /// `x = silu(x) y`.
    Swiglu,
    /// `x = gelu(x) y`.
    Geglu,
    /// As in gpt-oss.
    SwigluClamped,
    /// `x *= sigmoid(y)`.
    GateBySigmoid,
}

/// What becomes of products with few activation rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum JoinedAs {
    /// Products of two or three matrices, each with an output of its own.
    Apart,
    /// The product of one matrix is added to the output.
    Added,
    /// The products of two matrices of one shape become a gate and what it gates, by one of
    /// [`ZipOp::GATES`].
    Gated(ZipOp),
}

impl ZipOp {
    /// The gates of feed-forward networks.
    pub const GATES: [Self; 3] = [Self::Swiglu, Self::Geglu, Self::SwigluClamped];

    /// Returns its name.
    const fn name(self) -> &'static str {
        match self {
            Self::Add => "add",
            Self::Swiglu => "swiglu",
            Self::Geglu => "geglu",
            Self::SwigluClamped => "swiglu_clamped",
            Self::GateBySigmoid => "gate_by_sigmoid",
        }
    }
}

/// A kernel. In the lists, `f32` and `i32` name the type of a buffer's words; no type means `u32`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kernel {
    /// Rounds activations to bytes with a scale for each block of 32 or 256 (`activations.rs` of
    /// `kernels/cpu`, also for NaN and infinity).
    ///
    /// Buffers: `x` f32 ro `[n, block]`; `q` rw `[n, block / 4]`; `scale` f32 rw `[n]`; `sums` i32 rw
    /// `[n, block / 16]`, the sums of sixteen bytes each. A word of `q` has four signed bytes, the first in
    /// the lowest bits.
    /// Params: `n`. Groups: one per block, flattened to x and y (`group.y * groups.x + group.x`).
    Quantize {
        /// 32 or 256.
        block: u32,
    },
    /// Products of a quantized matrix with up to `tokens` activation rows per group (`matmul/scalar.rs`).
    ///
    /// Buffers: `w` ro; `q` ro `[t, cols / 4]`; `scale` f32 ro `[t, cols / block]`; `sums` i32 ro
    /// `[t, cols / 16]`; `out` f32 rw `[t, stride]`. Params: `rows`, `cols`, `t`, `row_first`, `stride`:
    /// `out[i, row_first + r]` for `r < rows`. Groups: `rows / matvec_rows` in x and y (flattened, rounded
    /// up), `t / tokens` in z.
    MatVec {
        /// A format of blocks.
        format: Format,
        /// One of [`TOKENS_EACH`].
        tokens: u32,
    },
    /// Several [`Self::MatVec`] in one, and what follows them: the same bits. Only of sets that
    /// [join](crate::Device::joins).
    ///
    /// Buffers: the matrices `w` ro; `q`, `scale`, `sums` ro as there; the outputs f32 rw `[t, rows]`, one of
    /// each matrix for [`JoinedAs::Apart`], else one. Params: for [`JoinedAs::Apart`] the rows of each
    /// matrix, else `rows`; `cols`, `t`. Groups: in x and y (flattened) `rows / matvec_rows` of each matrix,
    /// each rounded up, or for a gate twice `rows` by it; `t / tokens` in z.
    MatVecJoined {
        /// A format of blocks.
        format: Format,
        /// One of [`TOKENS_EACH`].
        tokens: u32,
        /// What becomes of the products.
        how: JoinedAs,
    },
    /// As [`Self::MatVec`], in tiles, for more tokens: the same bits. Groups: `t / matmul_tokens` in x,
    /// `rows / matmul_rows` in y.
    MatMul {
        /// A format of blocks.
        format: Format,
    },
    /// Products of a matrix of floats. Buffers: `w` ro; `x` f32 ro `[t, cols]`; `out` f32 rw. Params and
    /// groups: as [`Self::MatVec`].
    MatVecFloat {
        /// F32, F16 or BF16.
        format: Format,
        /// One of [`TOKENS_EACH`].
        tokens: u32,
    },
    /// As [`Self::MatVecFloat`], in tiles: the same bits. Groups: as [`Self::MatMul`].
    MatMulFloat {
        /// F32, F16 or BF16.
        format: Format,
    },
    /// Chooses the experts of `n` tokens (`routing.rs` of `kernels/cpu`, also for NaN and infinity).
    ///
    /// Buffers: `x` f32 ro `[n, count]`; `bias` f32 ro `[count]`; `own` f32 ro `[count]`; `work` rw
    /// `[n, 4, count]`; `routes` rw `[n, used, 2]`. `x` has the router's numbers, `bias` is that of the
    /// choice, and `own` has the experts' own factors. Without them `bias` or `own` is one word that is not
    /// read. `routes` gets ids, ascending, each with the bits of its factor. Params: `n`, `count`, `used`,
    /// `gating` (0 softmax, 1 sigmoid, 2 softmax of the chosen), `groups` (0 for none), `groups_used`,
    /// `normalized`, `scale` f32, `has_bias`, `has_own`.
    /// Groups: one per token, flattened to x and y.
    Route,
    /// Products of chosen matrices with an activation row each: the bits of [`Self::MatVec`] and
    /// [`Self::MatVecFloat`].
    ///
    /// `w` holds `held` matrices `[rows, cols]`, the first of number `first`, one each `stride` words. Pair
    /// `p` has activation row `p / used` and matrix `routes[p, 0] each + at`. A pair whose matrix is not in
    /// `w` is left as it is.
    ///
    /// Buffers: `w` ro; `routes` ro `[pairs, 2]`; the activations as there; `out` f32 rw `[pairs, rows]`.
    /// Params: `rows`, `cols`, `pairs`, `used`, `each`, `at`, `first`, `held`, `stride`. Groups:
    /// `rows / matvec_rows` in x and y (flattened, rounded up), `pairs` in z.
    MatVecChosen {
        /// Any format.
        format: Format,
    },
    /// `x[p, j] += bias[routes[p, 0], j]`. Buffers: `x` f32 rw `[pairs, width]`; `bias` f32 ro; `routes` ro
    /// `[pairs, 2]`. Params: `n` (numbers of `x`), `width`.
    AddChosenBias,
    /// Adds `routes[p, 1] y[p, j]` to `x[i, j]` for `p` from `i used` to `(i + 1) used`, in order, each
    /// product rounded before the sum. Buffers: `x` f32 rw; `y` f32 ro `[pairs, width]`; `routes` ro
    /// `[pairs, 2]`. Params: `n` (numbers of `x`), `width`, `used`.
    AddChosen,
    /// RMS norm of `n` vectors. Buffers: `x` f32 ro `[n, width]`; `weight` f32 ro `[width]`; `out` f32 rw.
    /// Params: `n`, `width`, `eps`. Groups: one per vector, flattened to x and y.
    RmsNorm,
    /// As [`Self::RmsNorm`] in place. Buffers: `x` f32 rw; `weight` f32 ro.
    RmsNormInPlace,
    /// [`Self::RmsNorm`] and [`Self::Quantize`] of its output, of `width` in whole blocks. Only of sets that
    /// [join](crate::Device::joins). Buffers: those of the norm, then `q`, `scale`, `sums`. Params and
    /// groups: as the norm.
    NormRounded {
        /// 32 or 256.
        block: u32,
    },
    /// The most probable token of each row of logits. Buffers: `x` ro `[n, width]`, the bits of floats; `out`
    /// rw `[n, 3]`. The first word of a row is the place of the greatest finite number, of equal ones the
    /// first, or 0 if there is none. The second is the place of the first number that is not finite, or
    /// `u32::MAX`. The third has its bits, or 0. Params: `n`, `width`. Groups: one per row, flattened to x
    /// and y.
    Best,
    /// Buffers: `x` f32 rw `[n]`. Params: `n`, `a`.
    Map(MapOp),
    /// Buffers: `x` f32 rw `[n]`; `y` f32 ro `[n]`. Params: `n`.
    Zip(ZipOp),
    /// `x[i] += bias[i % width]`. Buffers: `x` f32 rw `[n]`; `bias` f32 ro. Params: `n`, `width`.
    AddBias,
    /// `x[i] *= factors[i / width]`. Buffers: `x` f32 rw `[n]`; `factors` f32 ro. Params: `n`, `width`.
    ScaleRows,
    /// With `g = i / len` and `j = i % len`: `out[g to + to_at + j] = x[g from + from_at + j]` for `i < n`.
    /// Buffers: `x` ro; `out` rw. Params: `n`, `len`, `from`, `from_at`, `to`, `to_at`.
    Copy,
    /// `out[i, j] = x[rows[i], j]`. Buffers: `x` ro; `rows` ro; `out` rw. Params: `n` (numbers of `out`),
    /// `width`.
    Gather,
    /// `x[rows[i], j] += factors[i] y[i, j]`, the product rounded before the sum; rows differ. Buffers: `x`
    /// f32 rw; `y` f32 ro; `rows` ro; `factors` f32 ro. Params: `n` (numbers of `y`), `width`.
    AddScaled,
    /// Rotates the heads of each row (`rows.rs`). Buffers: `x` f32 rw `[t, heads d]`; `cos`, `sin` f32 ro
    /// `[t, half]`. Params: `n = t heads half`, `heads`, `d`, `half`. One pair for each `i < n`.
    Rope(RopeStyle),
    /// Writes keys and values of `t` rows as binary16, rounded to nearest, ties to even. Buffers: `k`, `v`
    /// f32 ro `[.., heads d]`; `places` ro `[t, 2]`: the row of `k` and `v`, and the slot; `keys`, `values`
    /// rw. `d` is even. Params: `n = t heads d / 2`, `heads`, `d`. One pair of dimensions for each `i < n`.
    ///
    /// Slot `s` is token `s % 32` of block `b = s / 32`. Words hold two dimensions, the even one low. Keys:
    /// word `((b heads + head) d / 2 + c / 2) 32 + s % 32`. Values: word
    /// `((b heads + head) 32 + s % 32) d / 2 + c / 2`.
    Append,
    /// [`Self::Rope`] of queries and keys, and [`Self::Append`] of the rotated keys. Only of sets that
    /// [join](crate::Device::joins). Buffers: `q` f32 rw `[t, q_heads d]`; `k`, `v` f32 ro `[t, heads d]`;
    /// `cos`, `sin` f32 ro `[t, half]`; `places` ro `[t, 2]`; `keys`, `values` rw. Params:
    /// `n = t q_heads half + t heads d / 2`, `t`, `q_heads`, `heads`, `d`, `half`.
    RopeAppend(RopeStyle),
    /// Copies slots: `keys` and `values` rw; `moves` ro `[n, 3]`: head, slot from, slot to. Slots that are
    /// read are not written. Params: `n d / 2`, `heads`, `d`. One word of each for each `i`.
    Keep,
    /// Rounds keys and values that [`Self::Append`] wrote to what is left of them in [`PackedKv`]. Buffers:
    /// `places` ro `[t, 2]`, of which the slots are used; `keys`, `values` rw. `d` is a multiple of 32.
    /// Params: `n = t heads d / 32`, `heads`, `d`. One group of 32 dimensions for each `i < n`.
    RoundKv(PackedKv),
    /// As [`Self::RoundKv`], and packs them. Buffers: `places` ro; `keys`, `values`, `packed` rw.
    PackKv(PackedKv),
    /// Opens packed blocks: the bits that [`Self::PackKv`] left. Buffers: `packed` ro; `blocks` ro `[b]`, ids
    /// that differ; `keys`, `values` rw. Params: `n = b heads d`, `heads`, `d`. One group of one token for
    /// each `i < n`, tokens first.
    UnpackKv(PackedKv),
    /// Attention (`attention.rs` of `kernels/cpu`: chunks of 32 keys, parts of 256, joined in order).
    ///
    /// Buffers: `q` f32 ro `[.., heads d]`; `keys`, `values` ro as [`Self::Append`] writes them;
    /// `table` ro; `items` ro `[items, 8]`; `sinks` f32 ro `[heads]`; `out` f32 rw as `q`;
    /// `lse` f32 rw `[.., lse_width]`. `table` has block ids. Without sinks, `sinks` is one word that is not
    /// read.
    ///
    /// An item is row, rows, position, first index in `table`, first head of the group, heads, 0, 0. Rows
    /// times heads is at most [`ATTEND_VECTORS`].
    ///
    /// The query of row `row + i` sees keys at positions `p <= position + i` with
    /// `p < first_keys || p + window > position + i`. An item takes query heads
    /// `g group + first head ..` for the key head `g = group.y`.
    ///
    /// Params: `items`, `kv_heads`, `group` (query heads of a key head), `d`, `scale` f32, `cap` f32 (0 for
    /// none), `window`, `first_keys`, `has_sinks`, `lse_width`. Groups: items in x, `kv_heads` in y.
    Attend(AttendWidth),
    /// One part of the keys of each item, for few items with many keys. Buffers: `q`, `keys`, `values`,
    /// `table`, `items` as [`Self::Attend`]; `states` f32 rw
    /// `[items, kv_heads, parts, ATTEND_VECTORS, 2 + d]`: top, sum, output of each vector. Vectors are
    /// numbered `i n_heads + head`. Params: as [`Self::Attend`], then `parts`. Groups: items in x, `kv_heads`
    /// in y, `parts` in z.
    AttendPart(AttendWidth),
    /// Joins the states. Buffers: `states` f32 ro; `items` ro; `sinks` f32 ro; `out`, `lse` f32 rw. Params:
    /// as [`Self::AttendPart`]. Groups: items in x, `kv_heads` in y.
    AttendJoin(AttendWidth),
    /// Softmax weights of some queries of one head, added up key by key (`score_rows` of `kernels/cpu`).
    /// Buffers: `q` f32 ro; `keys` ro; `table` ro; `lse` f32 ro; `out` f32 rw `[n]`. Params: `n` (keys),
    /// `row`, `rows`, `position` of the first row, `q_width`, `head`, `lse_width`, `kv_heads`, `kv_head`,
    /// `d`, `scale` f32, `cap` f32, `window`, `first_keys`. `out[key]` is the sum over rows, in order, of
    /// `exp(s - lse)`; 0 for keys that no row sees.
    Score,
}

impl Kernel {
    /// Returns its name with its variant, as errors and logs show it.
    pub fn name(self) -> String {
        match self {
            Self::Quantize { block } => format!("quantize_{block}"),
            Self::MatVec { format, tokens } | Self::MatVecFloat { format, tokens } => {
                format!("matvec_{}_{tokens}", format.name().to_lowercase())
            }
            Self::MatVecJoined { format, tokens, how } => {
                let how = match how {
                    JoinedAs::Apart => "apart",
                    JoinedAs::Added => "added",
                    JoinedAs::Gated(op) => op.name(),
                };
                format!("matvec_{}_{tokens}_{how}", format.name().to_lowercase())
            }
            Self::MatMul { format } | Self::MatMulFloat { format } => {
                format!("matmul_{}", format.name().to_lowercase())
            }
            Self::Route => "route".to_owned(),
            Self::MatVecChosen { format } => format!("matvec_{}_chosen", format.name().to_lowercase()),
            Self::AddChosenBias => "add_chosen_bias".to_owned(),
            Self::AddChosen => "add_chosen".to_owned(),
            Self::RmsNorm => "rms_norm".to_owned(),
            Self::RmsNormInPlace => "rms_norm_in_place".to_owned(),
            Self::Best => "best".to_owned(),
            Self::Map(MapOp::Scale) => "scale".to_owned(),
            Self::Map(MapOp::SoftCap) => "soft_cap".to_owned(),
            Self::Map(MapOp::Sigmoid) => "sigmoid".to_owned(),
            Self::Zip(op) => op.name().to_owned(),
            Self::NormRounded { block } => format!("norm_rounded_{block}"),
            Self::AddBias => "add_bias".to_owned(),
            Self::ScaleRows => "scale_rows".to_owned(),
            Self::Copy => "copy".to_owned(),
            Self::Gather => "gather".to_owned(),
            Self::AddScaled => "add_scaled".to_owned(),
            Self::Rope(RopeStyle::Adjacent) => "rope_adjacent".to_owned(),
            Self::Rope(_) => "rope_halves".to_owned(),
            Self::RopeAppend(RopeStyle::Adjacent) => "rope_append_adjacent".to_owned(),
            Self::RopeAppend(_) => "rope_append_halves".to_owned(),
            Self::Append => "append".to_owned(),
            Self::Keep => "keep".to_owned(),
            Self::RoundKv(packed) => format!("round_kv_{}", packed.name()),
            Self::PackKv(packed) => format!("pack_kv_{}", packed.name()),
            Self::UnpackKv(packed) => format!("unpack_kv_{}", packed.name()),
            Self::Attend(width) => format!("attend_{}", width.dims()),
            Self::AttendPart(width) => format!("attend_part_{}", width.dims()),
            Self::AttendJoin(width) => format!("attend_join_{}", width.dims()),
            Self::Score => "score".to_owned(),
        }
    }

    /// Returns every kernel and variant that only sets which [join](crate::Device::joins) have.
    pub fn joined() -> Vec<Self> {
        let mut all = vec![
            Self::NormRounded { block: 32 },
            Self::NormRounded { block: 256 },
            Self::RopeAppend(RopeStyle::Adjacent),
            Self::RopeAppend(RopeStyle::Halves),
        ];
        for format in Format::ALL.into_iter().filter(|format| format.block_len() > 1) {
            for tokens in TOKENS_EACH {
                let joined = |how| Self::MatVecJoined { format, tokens, how };
                all.extend([JoinedAs::Apart, JoinedAs::Added].map(joined));
                all.extend(ZipOp::GATES.map(|op| joined(JoinedAs::Gated(op))));
            }
        }
        all
    }

    /// Returns every kernel and variant that every set has.
    pub fn all() -> Vec<Self> {
        let mut all = vec![
            Self::Quantize { block: 32 },
            Self::Quantize { block: 256 },
            Self::Route,
            Self::AddChosenBias,
            Self::AddChosen,
            Self::RmsNorm,
            Self::RmsNormInPlace,
            Self::Best,
            Self::AddBias,
            Self::ScaleRows,
            Self::Copy,
            Self::Gather,
            Self::AddScaled,
            Self::Rope(RopeStyle::Adjacent),
            Self::Rope(RopeStyle::Halves),
            Self::Append,
            Self::Keep,
            Self::Score,
        ];
        all.extend(MapOp::ALL.map(Self::Map));
        let pairs = [ZipOp::Add, ZipOp::Swiglu, ZipOp::Geglu, ZipOp::SwigluClamped, ZipOp::GateBySigmoid];
        all.extend(pairs.map(Self::Zip));
        for format in Format::ALL {
            let is_float = format.block_len() == 1;
            for tokens in TOKENS_EACH {
                let float = Self::MatVecFloat { format, tokens };
                all.push(if is_float { float } else { Self::MatVec { format, tokens } });
            }
            all.push(if is_float { Self::MatMulFloat { format } } else { Self::MatMul { format } });
            all.push(Self::MatVecChosen { format });
        }
        for packed in PackedKv::ALL {
            all.extend([Self::RoundKv(packed), Self::PackKv(packed), Self::UnpackKv(packed)]);
        }
        for width in AttendWidth::ALL {
            all.extend([Self::Attend(width), Self::AttendPart(width), Self::AttendJoin(width)]);
        }
        all
    }
}
