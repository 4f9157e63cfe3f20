//! The text of the kernels: CUDA C++, assembled for the kernels that are wanted.
//!
//! A text has no `#include`, so NVRTC compiles it without a toolkit. Tables that the formats are defined by
//! are written from those of `kernels/cpu`.

use std::fmt::Write;

use baton_kernels_cpu::{Format, RopeStyle, grids};
use baton_kernels_gpu::{ATTEND_VECTORS, AttendWidth, JoinedAs, Kernel, MapOp, Tiles, ZipOp};

const COMMON: &str = include_str!("cu/common.cuh");
const GATES: &str = include_str!("cu/gates.cuh");
const ROWS: &str = include_str!("cu/rows.cuh");
const EXPERTS: &str = include_str!("cu/experts.cuh");
const PACKED: &str = include_str!("cu/packed.cuh");
const QUANTIZE: &str = include_str!("cu/quantize.cuh");
const SHORT: &str = include_str!("cu/short.cuh");
const LONG: &str = include_str!("cu/long.cuh");
const CODEBOOKS: &str = include_str!("cu/codebooks.cuh");
const PLACE: &str = include_str!("cu/place.cuh");
const MATVEC: &str = include_str!("cu/matvec.cuh");
const FLOATS: &str = include_str!("cu/floats.cuh");
const MMA: &str = include_str!("cu/mma.cuh");
const MATMUL: &str = include_str!("cu/matmul.cuh");
const ATTENTION: &str = include_str!("cu/attention.cuh");
const ATTENTION_PARTS: &str = include_str!("cu/attention_parts.cuh");

/// The tile sizes of the kernels.
pub const TILES: Tiles = Tiles { matvec_rows: 8, matmul_rows: 64, matmul_tokens: 64, numbers: 256 };

/// Options of every compiler of these texts: a product and a sum are never joined, and division, square root
/// and small numbers are those of IEEE. (All but the first are what the compilers do by themselves.)
pub const OPTIONS: [&str; 4] = ["--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true"];

/// Kernels whose texts are alike, under a name.
#[derive(Debug, Clone)]
pub struct Family {
    /// The name.
    pub name: &'static str,
    /// Its kernels.
    pub kernels: Vec<Kernel>,
}

/// Returns the kernel whose function computes a kernel too, given [other arguments](arguments).
pub const fn function(kernel: Kernel) -> Kernel {
    match kernel {
        Kernel::MatVecJoined { format, tokens, .. } => Kernel::MatVec { format, tokens },
        kernel => kernel,
    }
}

/// Returns the kernels that have a function of their own.
pub fn functions() -> Vec<Kernel> {
    let mut all = Kernel::all();
    all.extend(Kernel::joined().into_iter().filter(|kernel| function(*kernel) == *kernel));
    all
}

/// Returns the workgroups of a kernel's function, given those of the table of kernels: one for each vector of
/// an item if its parts are joined.
pub const fn groups(kernel: Kernel, [x, y, z]: [u32; 3]) -> [u32; 3] {
    match kernel {
        Kernel::AttendJoin(_) => [x, y, z * ATTEND_VECTORS as u32],
        _ => [x, y, z],
    }
}

/// The arguments of a kernel's function.
#[derive(Debug, PartialEq, Eq)]
pub struct Arguments {
    /// The places of buffers in the list of the launch; `None` for one that the function does not use.
    pub buffers: Vec<Option<usize>>,
    /// The numbers.
    pub params: Vec<u32>,
}

/// Returns the numbers of the function of products with few activation rows, as its text has them, and how
/// many matrices it takes; `None` for other kernels.
fn product_numbers(kernel: Kernel, params: &[u32]) -> Option<(usize, [u32; 9])> {
    let (n, mode) = match kernel {
        Kernel::MatVec { .. } => (1, 0),
        Kernel::MatVecJoined { how, .. } => match how {
            JoinedAs::Apart => (params.len() - 2, 0),
            JoinedAs::Added => (1, 1),
            JoinedAs::Gated(ZipOp::Geglu) => (2, 3),
            JoinedAs::Gated(ZipOp::SwigluClamped) => (2, 4),
            JoinedAs::Gated(_) => (2, 2),
        },
        _ => return None,
    };
    // A gate and what it gates have the same rows.
    let sizes = if mode < 2 { n } else { 1 };
    let rows = |i: usize| if i < sizes { params[i] } else { 0 };
    let [cols, t] = [params[sizes], params[sizes + 1]];
    let is_part = matches!(kernel, Kernel::MatVec { .. });
    let [row_first, stride] = if is_part { [params[3], params[4]] } else { [0, params[0]] };
    Some((n, [rows(0), rows(1), rows(2), cols, t, row_first, stride, mode, 0]))
}

/// Returns the arguments of a launch with so many buffers and these numbers. Products with few activation
/// rows have a function for up to three matrices, as `MatVecArgs` of its text says.
pub fn arguments(kernel: Kernel, buffers: usize, params: &[u32]) -> Arguments {
    let Some((n, numbers)) = product_numbers(kernel, params) else {
        return Arguments { buffers: (0..buffers).map(Some).collect(), params: params.to_vec() };
    };
    let three = |first: usize, n: usize| [0, 1, 2].map(|i| (i < n).then_some(first + i));
    let rounded = [n, n + 1, n + 2].map(Some);
    let places = three(0, n).into_iter().chain(rounded).chain(three(n + 3, buffers - n - 3)).collect();
    Arguments { buffers: places, params: numbers.to_vec() }
}

/// What the variant of a product with one activation row needs that copies weights to shared memory beside
/// the arithmetic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Copied {
    /// Bytes of shared memory of a workgroup.
    pub bytes: u32,
}

impl Copied {
    /// Returns what a launch needs; `None` if its kernel has no such variant, or its rows do not lie as that
    /// takes them. Only GPUs from 8.0 on have it.
    pub fn of(kernel: Kernel, params: &[u32]) -> Option<Self> {
        let (Kernel::MatVec { format, tokens: 1 } | Kernel::MatVecJoined { format, tokens: 1, .. }) =
            function(kernel)
        else {
            return None;
        };
        if format.block_len() != 256 {
            return None;
        }
        let gated = matches!(kernel, Kernel::MatVecJoined { how: JoinedAs::Gated(_), .. });
        let (_, numbers) = product_numbers(kernel, params)?;
        let (blocks, block_bytes) = (numbers[3] / 256, format.row_bytes(256)? as u32);
        if numbers[4] != 1 {
            return None;
        }
        // Copies are of sixteen bytes.
        let rows = TILES.matvec_rows / if gated { 2 } else { 1 };
        if !(u64::from(rows) * u64::from(blocks) * u64::from(block_bytes)).is_multiple_of(16) {
            return None;
        }
        // Two times 32 blocks of weights for each of four warps; bytes and sums of the activations, padded;
        // their scales; two lists of products for each row.
        let list = blocks.next_multiple_of(4) + 4;
        let words =
            2 * 4 * 32 * block_bytes / 4 + blocks.checked_mul(68 + 20)? + list + 2 * TILES.matvec_rows * list;
        Some(Self { bytes: words.checked_mul(4)? })
    }

    /// Makes arguments those of this variant.
    pub fn choose(self, arguments: &mut Arguments) {
        *arguments.params.last_mut().expect("products have numbers") = 1;
    }
}

/// Returns all kernels in families, each of which makes one text of reasonable size.
pub fn families() -> Vec<Family> {
    let name = |kernel: &Kernel| match kernel {
        Kernel::MatVecFloat { .. } | Kernel::MatMulFloat { .. } => "floats",
        Kernel::MatVecChosen { format } if format.block_len() == 1 => "floats",
        Kernel::MatVec { format, .. } | Kernel::MatVecChosen { format } if format.block_len() == 32 => {
            "matvec_short"
        }
        Kernel::MatVec { format, .. } | Kernel::MatVecChosen { format }
            if grids::codebook(*format).is_empty() =>
        {
            "matvec_long"
        }
        Kernel::MatVec { .. } | Kernel::MatVecChosen { .. } => "matvec_codebook",
        Kernel::MatMul { format } if format.block_len() == 32 => "matmul_short",
        Kernel::MatMul { format } if grids::codebook(*format).is_empty() => "matmul_long",
        Kernel::MatMul { .. } => "matmul_codebook",
        Kernel::Attend(_) | Kernel::AttendPart(_) | Kernel::AttendJoin(_) | Kernel::Score => "attention",
        _ => "rows",
    };
    let mut families: Vec<Family> = Vec::new();
    for kernel in functions() {
        let name = name(&kernel);
        match families.iter_mut().find(|family| family.name == name) {
            Some(family) => family.kernels.push(kernel),
            None => families.push(Family { name, kernels: vec![kernel] }),
        }
    }
    families
}

/// Returns the name of a kernel's function in its text.
pub fn entry(kernel: Kernel) -> String {
    format!("baton_{}", function(kernel).name())
}

/// Returns the threads of a workgroup of a kernel.
pub const fn threads(kernel: Kernel) -> u32 {
    match kernel {
        Kernel::Quantize { block: 32 } => 32,
        Kernel::Quantize { .. } => 64,
        Kernel::MatVec { .. }
        | Kernel::MatVecJoined { .. }
        | Kernel::MatVecFloat { .. }
        | Kernel::MatVecChosen { .. } => 128,
        Kernel::Attend(AttendWidth::D576) | Kernel::AttendPart(AttendWidth::D576) => 320,
        _ => 256,
    }
}

/// Returns the name of the table that the text of a format's codebook uses.
fn table_name(format: Format) -> Option<&'static str> {
    match format {
        Format::Iq1S | Format::Iq1M => Some("TERNARY_GRID"),
        Format::Iq2Xxs => Some("IQ2_XXS_GRID"),
        Format::Iq2Xs => Some("IQ2_XS_GRID"),
        Format::Iq2S => Some("IQ2_S_GRID"),
        Format::Iq3Xxs => Some("IQ3_XXS_GRID"),
        Format::Iq3S => Some("IQ3_S_GRID"),
        _ => None,
    }
}

/// Returns the format of the weights that a kernel decodes, if it does.
const fn format_of(kernel: Kernel) -> Option<Format> {
    match kernel {
        Kernel::MatVec { format, .. } | Kernel::MatMul { format } => Some(format),
        Kernel::MatVecChosen { format } if format.block_len() > 1 => Some(format),
        _ => None,
    }
}

/// Appends `{a, b, ...}`.
fn push_words(text: &mut String, words: &[u32]) {
    text.push('{');
    for word in words {
        write!(text, "{word:#x}u,").expect("writing to a string cannot fail");
    }
    text.push('}');
}

/// Appends the values of the nibbles that index a table, four a word.
fn push_nibble_values(text: &mut String) {
    for (name, format) in [("IQ4_VALUES", Format::Iq4Nl), ("MXFP4_VALUES", Format::Mxfp4)] {
        let values = grids::nibble_values(format).expect("nibbles of this format index a table");
        let bytes = values.map(i8::cast_unsigned);
        let words: Vec<u32> = bytes.as_chunks().0.iter().map(|four| u32::from_le_bytes(*four)).collect();
        write!(text, "#define {name} ").expect("writing to a string cannot fail");
        push_words(text, &words);
        text.push('\n');
    }
}

/// Appends the codebooks of these kernels, each once.
fn push_codebooks(text: &mut String, kernels: &[Kernel]) {
    let mut done = Vec::new();
    for format in kernels.iter().copied().filter_map(format_of) {
        if let Some(name) = table_name(format).filter(|name| !done.contains(name)) {
            done.push(name);
            let words = grids::codebook(format);
            write!(text, "#define WITH_{name}\nstatic __device__ const u32 {name}[{}] = ", words.len())
                .expect("writing to a string cannot fail");
            push_words(text, &words);
            text.push_str(";\n");
        }
    }
}

/// Returns the line that makes a kernel's function.
fn line(kernel: Kernel) -> String {
    let name = entry(kernel);
    let kind = |format: Format| if format.block_len() == 32 { "short" } else { "long" };
    let class = |format: Format| if format.block_len() == 32 { "Short" } else { "Long" };
    match kernel {
        Kernel::Quantize { block } => format!("QUANTIZE({name}, {block})"),
        Kernel::MatVec { format, tokens } => {
            format!("MATVEC({name}, {}, {format:?}, {tokens}u)", class(format))
        }
        Kernel::MatMul { format } => format!("MATMUL({name}, {}, {format:?})", kind(format)),
        Kernel::MatVecFloat { format, tokens } => format!("MATVEC_FLOAT({name}, {format:?}, {tokens}u)"),
        Kernel::MatMulFloat { format } => format!("MATMUL_FLOAT({name}, {format:?})"),
        Kernel::MatVecChosen { format } if format.block_len() == 1 => {
            format!("MATVEC_FLOAT_CHOSEN({name}, {format:?})")
        }
        Kernel::MatVecChosen { format } => format!("MATVEC_CHOSEN({name}, {}, {format:?})", class(format)),
        Kernel::Route => format!("ROUTE({name})"),
        Kernel::AddChosenBias => format!("ADD_CHOSEN_BIAS({name})"),
        Kernel::AddChosen => format!("ADD_CHOSEN({name})"),
        Kernel::MatVecJoined { .. } => line(function(kernel)),
        Kernel::NormRounded { block } => format!("NORM_ROUNDED({name}, {block}u)"),
        Kernel::RopeAppend(style) => format!("ROPE_APPEND({name}, {})", style == RopeStyle::Adjacent),
        Kernel::RmsNorm => format!("RMS_NORM({name})"),
        Kernel::RmsNormInPlace => format!("RMS_NORM_IN_PLACE({name})"),
        Kernel::Best => format!("BEST({name})"),
        Kernel::Map(MapOp::Scale) => format!("MAP({name}, Scale)"),
        Kernel::Map(MapOp::SoftCap) => format!("MAP({name}, SoftCap)"),
        Kernel::Map(MapOp::Sigmoid) => format!("MAP({name}, Sigmoid)"),
        Kernel::Zip(op) => {
            let op = match op {
                ZipOp::Add => "Add",
                ZipOp::Swiglu => "Swiglu",
                ZipOp::Geglu => "Geglu",
                ZipOp::SwigluClamped => "SwigluClamped",
                ZipOp::GateBySigmoid => "GateBySigmoid",
            };
            format!("ZIP({name}, {op})")
        }
        Kernel::AddBias => format!("ADD_BIAS({name})"),
        Kernel::ScaleRows => format!("SCALE_ROWS({name})"),
        Kernel::Copy => format!("COPY({name})"),
        Kernel::Gather => format!("GATHER({name})"),
        Kernel::AddScaled => format!("ADD_SCALED({name})"),
        Kernel::Rope(style) => format!("ROPE({name}, {})", style == RopeStyle::Adjacent),
        Kernel::Append => format!("APPEND({name})"),
        Kernel::Keep => format!("KEEP({name})"),
        Kernel::RoundKv(how) => format!("ROUND_KV({name}, {}u)", how.bits()),
        Kernel::PackKv(how) => format!("PACK_KV({name}, {}u)", how.bits()),
        Kernel::UnpackKv(how) => format!("UNPACK_KV({name}, {}u)", how.bits()),
        Kernel::Attend(width) => format!("ATTEND({name}, {}u)", width.dims()),
        Kernel::AttendPart(width) => format!("ATTEND_PART({name}, {}u)", width.dims()),
        Kernel::AttendJoin(width) => format!("ATTEND_JOIN({name}, {}u)", width.dims()),
        Kernel::Score => format!("SCORE({name})"),
    }
}

/// Returns the text of some kernels. Each is a function with C linkage named by [`entry`]; its arguments are
/// the kernel's buffers and then its numbers, in the order of the table of kernels.
pub fn text(kernels: &[Kernel]) -> String {
    let any = |test: &dyn Fn(&Kernel) -> bool| kernels.iter().any(test);
    let is_product = |kernel: &Kernel| format_of(*kernel).is_some();
    let is_chosen = |kernel: &Kernel| matches!(kernel, Kernel::MatVecChosen { .. });
    let is_float = |kernel: &Kernel| {
        matches!(kernel, Kernel::MatVecFloat { .. } | Kernel::MatMulFloat { .. })
            || is_chosen(kernel) && !is_product(kernel)
    };
    let is_attention = |kernel: &Kernel| {
        matches!(kernel, Kernel::Attend(_) | Kernel::AttendPart(_) | Kernel::AttendJoin(_) | Kernel::Score)
    };
    let is_other = |kernel: &Kernel| {
        !matches!(
            kernel,
            Kernel::Quantize { .. }
                | Kernel::MatVec { .. }
                | Kernel::MatVecChosen { .. }
                | Kernel::MatMul { .. }
                | Kernel::MatVecFloat { .. }
                | Kernel::MatMulFloat { .. }
                | Kernel::Attend(_)
                | Kernel::AttendPart(_)
                | Kernel::AttendJoin(_)
                | Kernel::Score
        )
    };
    let mut text = COMMON.to_owned();
    let is_matvec =
        |kernel: &Kernel| matches!(kernel, Kernel::MatVec { .. }) || is_chosen(kernel) && is_product(kernel);
    if any(&is_other) || any(&is_matvec) {
        text.push_str(GATES);
    }
    if any(&is_other) || any(&|kernel: &Kernel| matches!(kernel, Kernel::Quantize { .. })) {
        text.push_str(QUANTIZE);
    }
    if any(&is_other) {
        text.push_str(ROWS);
        text.push_str(EXPERTS);
        text.push_str(PACKED);
    }
    if any(&is_product) {
        push_nibble_values(&mut text);
        text.push_str(SHORT);
        text.push_str(LONG);
        push_codebooks(&mut text, kernels);
        text.push_str(CODEBOOKS);
    }
    if any(&is_product) || any(&is_float) {
        text.push_str(PLACE);
    }
    if any(&is_matvec) {
        text.push_str(MATVEC);
    }
    if any(&is_float) {
        text.push_str(FLOATS);
    }
    if any(&is_attention) || any(&|kernel: &Kernel| matches!(kernel, Kernel::MatMul { .. })) {
        text.push_str(MMA);
    }
    if any(&|kernel: &Kernel| matches!(kernel, Kernel::MatMul { .. })) {
        text.push_str(MATMUL);
    }
    if any(&is_attention) {
        text.push_str(ATTENTION);
        text.push_str(ATTENTION_PARTS);
    }
    for kernel in kernels {
        text.push_str(&line(*kernel));
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_is_in_one_family() {
        let kernels: Vec<Kernel> = families().into_iter().flat_map(|family| family.kernels).collect();
        assert_eq!(kernels.len(), functions().len());
        for kernel in functions() {
            assert_eq!(kernels.iter().filter(|other| **other == kernel).count(), 1, "{}", kernel.name());
        }
    }

    #[test]
    fn a_text_has_what_its_kernel_needs_and_no_file() {
        for kernel in functions() {
            let text = text(&[kernel]);
            assert!(text.contains(&format!("({}", entry(kernel))), "{}", kernel.name());
            assert!(!text.contains("#include"), "{}", kernel.name());
            let table = format_of(kernel).and_then(table_name);
            assert_eq!(text.matches("static __device__ const u32").count(), usize::from(table.is_some()));
        }
    }

    #[test]
    fn entries_differ() {
        let mut names: Vec<String> = functions().into_iter().map(entry).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), functions().len());
    }
}
