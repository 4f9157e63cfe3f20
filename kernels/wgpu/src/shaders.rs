//! The source of each kernel: its bindings, its numbers, and the pieces of WGSL that it is made of.
//!
//! A file of `shaders/` holds pieces, each after a line `//@ name`. Bindings and numbers are declared here,
//! so that the host and the source cannot disagree about them.

mod packed;

use std::fmt::Write;

use baton_kernels_cpu::{Format, RopeStyle, grids};
use baton_kernels_gpu::{AttendWidth, Kernel, MapOp, Tiles, ZipOp};

const COMMON: &str = include_str!("shaders/common.wgsl");
const NUMBERS: &str = include_str!("shaders/numbers.wgsl");
const ROWS: &str = include_str!("shaders/rows.wgsl");
const EXPERTS: &str = include_str!("shaders/experts.wgsl");
const WEIGHTS: &str = include_str!("shaders/weights.wgsl");
const SHORT: &str = include_str!("shaders/short.wgsl");
const LONG: &str = include_str!("shaders/long.wgsl");
const MATVEC: &str = include_str!("shaders/matvec.wgsl");
const MATMUL: &str = include_str!("shaders/matmul.wgsl");
const ATTENTION: &str = include_str!("shaders/attention.wgsl");

/// The tile sizes that the sources are written for.
pub(crate) const TILES: Tiles = Tiles { matvec_rows: 4, matmul_rows: 64, matmul_tokens: 32, numbers: 256 };

/// What a kernel is compiled from.
#[derive(Debug)]
pub(crate) struct Shader {
    /// The source.
    pub(crate) wgsl: String,
    /// For each buffer that the kernel documents, in order, whether the kernel writes it.
    pub(crate) writes: Vec<bool>,
    /// The table of the format; it is bound after the buffers. Empty if there is none.
    pub(crate) table: Vec<u32>,
    /// The numbers of a launch, without the zero that is appended to them.
    pub(crate) params: usize,
}

/// How a kernel uses a buffer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    Ro,
    Rw,
}

use Access::{Ro, Rw};

/// A buffer: name, type of its elements, access.
type Binding = (&'static str, &'static str, Access);

/// A number of a launch: name, type.
type Param = (&'static str, &'static str);

/// Returns the piece of a file that begins after the line `//@ name`.
///
/// # Panics
/// If the file has no such piece: an error in this crate that every test of the kernel shows.
fn piece(file: &'static str, name: &str) -> &'static str {
    let found = file.split("//@ ").skip(1).find_map(|piece| {
        let (title, body) = piece.split_once('\n')?;
        (title == name).then_some(body)
    });
    found.unwrap_or_else(|| panic!("no piece `{name}` in a shader file"))
}

/// A source that grows piece by piece.
struct Source {
    wgsl: String,
    bindings: Vec<Binding>,
    params: usize,
    table: Vec<u32>,
}

impl Source {
    fn new(bindings: &[Binding], params: &[Param]) -> Self {
        Self::declared(bindings, params).push(piece(COMMON, "functions"))
    }

    /// Begins with declarations only.
    fn declared(bindings: &[Binding], params: &[Param]) -> Self {
        let mut source = Self {
            wgsl: String::new(),
            bindings: bindings.to_vec(),
            params: params.len(),
            table: Vec::new(),
        };
        source.wgsl.push_str("struct Params {\n");
        for (name, kind) in params {
            source.line(&format!("    {name}: {kind},"));
        }
        source.line("    zero: u32,\n}\nvar<immediate> params: Params;");
        for (i, (name, kind, access)) in bindings.iter().enumerate() {
            let access = if *access == Rw { "read_write" } else { "read" };
            source.line(&format!("@group(0) @binding({i}) var<storage, {access}> {name}: array<{kind}>;"));
        }
        source
    }

    fn line(&mut self, line: &str) {
        writeln!(self.wgsl, "{line}").expect("a string takes every line");
    }

    /// Adds a piece.
    fn push(mut self, piece: &str) -> Self {
        self.line(piece);
        self
    }

    /// Adds a constant.
    fn constant(mut self, name: &str, value: impl std::fmt::Display) -> Self {
        self.line(&format!("const {name} = {value};"));
        self
    }

    /// Adds the table of a format, if it has one.
    fn table(mut self, table: Vec<u32>) -> Self {
        if !table.is_empty() {
            let i = self.bindings.len();
            self.line(&format!("@group(0) @binding({i}) var<storage, read> table: array<u32>;"));
        }
        self.table = table;
        self
    }

    fn finish(self) -> Shader {
        let writes = self.bindings.iter().map(|(_, _, access)| *access == Rw).collect();
        Shader { wgsl: self.wgsl, writes, table: self.table, params: self.params }
    }
}

/// How `a * b + c` is rounded once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fused {
    /// By `fma`.
    Native,
    /// By way of f64, on a program that stands for a GPU and rounds `fma` twice.
    ByF64,
}

/// Returns the kernel that finds out whether `fma` rounds once: it sets `out[0]` to 1 if so. Its numbers are
/// `a` = 1 + 2^-12, and the square of `a` rounded to f32.
pub(crate) fn probe() -> Shader {
    Source::declared(&[("out", "u32", Rw)], &[("a", "f32"), ("square", "f32")])
        .push(piece(COMMON, "probe"))
        .finish()
}

/// Returns what a kernel is compiled from.
pub(crate) fn shader(kernel: Kernel, fused: Fused) -> Shader {
    let mut shader = definition(kernel);
    shader.wgsl.push_str(match fused {
        Fused::Native => piece(COMMON, "fused"),
        Fused::ByF64 => piece(COMMON, "fused_by_f64"),
    });
    shader
}

fn definition(kernel: Kernel) -> Shader {
    match kernel {
        Kernel::Quantize { block } => quantize(block),
        Kernel::Route => route(),
        Kernel::MatVec { format, tokens } => matvec(product(format, &[], &PRODUCT), format, tokens, "whole"),
        Kernel::MatVecFloat { format, tokens } => {
            matvec_float(float_product(format, &[], &PRODUCT), format, tokens, "whole")
        }
        Kernel::MatVecChosen { format } if format.block_len() == 1 => {
            matvec_float(float_product(format, &[ROUTES], &CHOSEN), format, 1, "chosen")
        }
        Kernel::MatVecChosen { format } => matvec(product(format, &[ROUTES], &CHOSEN), format, 1, "chosen"),
        Kernel::MatMul { format } => matmul(format),
        Kernel::MatMulFloat { format } => matmul_float(format),
        Kernel::Best => best(),
        Kernel::RmsNorm | Kernel::RmsNormInPlace => rms_norm(kernel == Kernel::RmsNormInPlace),
        Kernel::Attend(width) => attend(width),
        Kernel::AttendPart(width) => attend_part(width),
        Kernel::AttendJoin(_) => attend_join(),
        Kernel::Score => score(),
        Kernel::Map(_) | Kernel::Zip(_) | Kernel::AddBias | Kernel::ScaleRows => simple(kernel),
        Kernel::Copy | Kernel::Gather | Kernel::AddScaled | Kernel::AddChosenBias | Kernel::AddChosen => {
            rows(kernel)
        }
        Kernel::Rope(_) | Kernel::Append | Kernel::Keep => heads(kernel),
        Kernel::RoundKv(how) | Kernel::PackKv(how) => packed::round(kernel, how),
        Kernel::UnpackKv(how) => packed::unpack(how),
        Kernel::MatVecJoined { .. } | Kernel::NormRounded { .. } | Kernel::RopeAppend(_) => {
            unreachable!("this set does not join kernels: {}", kernel.name())
        }
    }
}

fn quantize(block: u32) -> Shader {
    let bindings = [("x", "vec4<f32>", Ro), ("q", "u32", Rw), ("scale", "f32", Rw), ("sums", "i32", Rw)];
    Source::new(&bindings, &[("n", "u32")])
        .constant("THREADS", format!("{}u", block / 4))
        .push(piece(ROWS, "quantize"))
        .finish()
}

fn route() -> Shader {
    let bindings = [
        ("x", "f32", Ro),
        ("bias", "f32", Ro),
        ("own", "f32", Ro),
        ("work", "u32", Rw),
        ("routes", "u32", Rw),
    ];
    let params = [
        ("n", "u32"),
        ("count", "u32"),
        ("used", "u32"),
        ("gating", "u32"),
        ("groups", "u32"),
        ("groups_used", "u32"),
        ("normalized", "u32"),
        ("scale", "f32"),
        ("has_bias", "u32"),
        ("has_own", "u32"),
    ];
    Source::new(&bindings, &params).push(piece(EXPERTS, "route")).finish()
}

fn rms_norm(in_place: bool) -> Shader {
    let mut bindings = vec![("x", "f32", if in_place { Rw } else { Ro }), ("weight", "f32", Ro)];
    if !in_place {
        bindings.push(("out", "f32", Rw));
    }
    Source::new(&bindings, &[("n", "u32"), ("width", "u32"), ("eps", "f32")])
        .push(piece(ROWS, if in_place { "norm_in_place" } else { "norm_to" }))
        .push(piece(ROWS, "norm"))
        .finish()
}

fn best() -> Shader {
    Source::new(&[("x", "u32", Ro), ("out", "u32", Rw)], &[("n", "u32"), ("width", "u32")])
        .push(piece(ROWS, "best"))
        .finish()
}

/// Kernels that change each number of `x`.
fn simple(kernel: Kernel) -> Shader {
    const N: Param = ("n", "u32");
    const X: Binding = ("x", "f32", Rw);
    let (name, other, params): (&str, &[Binding], &[Param]) = match kernel {
        Kernel::Map(MapOp::Scale) => ("scale", &[], &[N, ("a", "f32")]),
        Kernel::Map(MapOp::SoftCap) => ("soft_cap", &[], &[N, ("a", "f32")]),
        Kernel::Map(MapOp::Sigmoid) => ("sigmoid", &[], &[N, ("a", "f32")]),
        Kernel::Zip(op) => {
            let name = match op {
                ZipOp::Add => "add",
                ZipOp::Swiglu => "swiglu",
                ZipOp::Geglu => "geglu",
                ZipOp::SwigluClamped => "swiglu_clamped",
                ZipOp::GateBySigmoid => "gate_by_sigmoid",
            };
            (name, &[("y", "f32", Ro)], &[N])
        }
        Kernel::AddBias => ("add_bias", &[("bias", "f32", Ro)], &[N, ("width", "u32")]),
        _ => ("scale_rows", &[("factors", "f32", Ro)], &[N, ("width", "u32")]),
    };
    let bindings: Vec<Binding> = [&[X], other].concat();
    Source::new(&bindings, params).push(piece(NUMBERS, name)).push(piece(NUMBERS, "main")).finish()
}

/// Kernels that bring numbers to other rows.
fn rows(kernel: Kernel) -> Shader {
    const N: Param = ("n", "u32");
    let (name, bindings, params): (&str, &[Binding], &[Param]) = match kernel {
        Kernel::Copy => (
            "copy",
            &[("x", "u32", Ro), ("out", "u32", Rw)],
            &[
                N,
                ("len", "u32"),
                ("from_each", "u32"),
                ("from_at", "u32"),
                ("to_each", "u32"),
                ("to_at", "u32"),
            ],
        ),
        Kernel::Gather => {
            ("gather", &[("x", "u32", Ro), ("rows", "u32", Ro), ("out", "u32", Rw)], &[N, ("width", "u32")])
        }
        Kernel::AddChosenBias => {
            ("add_chosen_bias", &[("x", "f32", Rw), ("bias", "f32", Ro), ROUTES], &[N, ("width", "u32")])
        }
        Kernel::AddChosen => (
            "add_chosen",
            &[("x", "f32", Rw), ("y", "f32", Ro), ROUTES],
            &[N, ("width", "u32"), ("used", "u32")],
        ),
        _ => (
            "add_scaled",
            &[("x", "f32", Rw), ("y", "f32", Ro), ("rows", "u32", Ro), ("factors", "f32", Ro)],
            &[N, ("width", "u32")],
        ),
    };
    Source::new(bindings, params).push(piece(NUMBERS, name)).push(piece(NUMBERS, "main")).finish()
}

/// Kernels on the heads of rows, but attention.
fn heads(kernel: Kernel) -> Shader {
    const SHAPE: [Param; 3] = [("n", "u32"), ("heads", "u32"), ("d", "u32")];
    let source = match kernel {
        Kernel::Rope(style) => {
            let bindings = [("x", "f32", Rw), ("cos_of", "f32", Ro), ("sin_of", "f32", Ro)];
            let [n, heads, d] = SHAPE;
            let name = if style == RopeStyle::Adjacent { "rope_adjacent" } else { "rope_halves" };
            Source::new(&bindings, &[n, heads, d, ("half", "u32")])
                .push(piece(NUMBERS, "rope"))
                .push(piece(NUMBERS, name))
        }
        Kernel::Append => {
            let bindings = [
                ("k", "f32", Ro),
                ("v", "f32", Ro),
                ("places", "u32", Ro),
                ("keys", "u32", Rw),
                ("values", "u32", Rw),
            ];
            Source::new(&bindings, &SHAPE).push(piece(NUMBERS, "half")).push(piece(NUMBERS, "append"))
        }
        _ => {
            let bindings = [("keys", "u32", Rw), ("values", "u32", Rw), ("moves", "u32", Ro)];
            Source::new(&bindings, &SHAPE).push(piece(NUMBERS, "keep"))
        }
    };
    source.push(piece(NUMBERS, "main")).finish()
}

/// Returns the table that the decoder of a format looks up.
fn table_of(format: Format) -> Vec<u32> {
    if let Some(values) = grids::nibble_values(format) {
        let byte = |nibble: usize| u32::from(values[nibble] as u8);
        return (0..256).map(|both| byte(both & 15) | byte(both >> 4) << 8).collect();
    }
    let book = grids::codebook(format);
    match format {
        Format::Iq1S | Format::Iq1M => book.as_chunks::<2>().0.iter().map(|[a, b]| a | b << 4).collect(),
        _ => book,
    }
}

/// The pieces that decode a format of blocks, and whether it has minima.
fn decoder(format: Format) -> (Vec<&'static str>, bool) {
    let short = |name| vec![piece(SHORT, name)];
    let fifths = |name| vec![piece(SHORT, "five_bits"), piece(SHORT, name)];
    let long = |parts: &[&str]| {
        let mut pieces: Vec<&'static str> = parts.iter().map(|name| piece(LONG, name)).collect();
        pieces.push(piece(LONG, "no_minima"));
        pieces
    };
    let after = |shared: &[&str], name| {
        let mut pieces: Vec<&'static str> = shared.iter().map(|name| piece(WEIGHTS, name)).collect();
        pieces.extend(long(&[name]));
        pieces
    };
    let of_pairs = |name| after(&["signs", "pair"], name);
    let of_singles = |name| after(&["signs"], name);
    match format {
        Format::Q4_0 => (short("q4_0"), false),
        Format::Q4_1 => (short("q4_1"), true),
        Format::Q5_0 => (fifths("q5_0"), false),
        Format::Q5_1 => (fifths("q5_1"), true),
        Format::Q8_0 => (short("q8_0"), false),
        Format::Iq4Nl => (vec![piece(WEIGHTS, "table"), piece(SHORT, "iq4_nl")], false),
        Format::Mxfp4 => (vec![piece(WEIGHTS, "table"), piece(SHORT, "mxfp4")], false),
        Format::Q2K => (vec![piece(LONG, "bit_pairs"), piece(LONG, "q2_k")], true),
        Format::Q3K => (long(&["bit_pairs", "q3_k"]), false),
        Format::Q4K => (vec![piece(LONG, "six_bits"), piece(LONG, "q4_k")], true),
        Format::Q5K => (vec![piece(LONG, "six_bits"), piece(LONG, "q5_k")], true),
        Format::Q6K => (long(&["q6_k"]), false),
        Format::Iq4Xs => (after(&["table"], "iq4_xs"), false),
        Format::Iq1S => (long(&["ternary", "iq1_s"]), false),
        Format::Iq1M => (long(&["ternary", "iq1_m"]), false),
        Format::Iq2Xxs => (of_pairs("iq2_xxs"), false),
        Format::Iq2Xs => (of_pairs("iq2_xs"), false),
        Format::Iq2S => (of_pairs("iq2_s"), false),
        Format::Iq3Xxs => (of_singles("iq3_xxs"), false),
        Format::Iq3S => (of_singles("iq3_s"), false),
        Format::Tq1_0 => (long(&["tq1_0"]), false),
        Format::Tq2_0 => (long(&["bit_pairs", "tq2_0"]), false),
        other => unreachable!("{} is not a format of blocks", other.name()),
    }
}

/// The numbers of a product.
const PRODUCT: [Param; 5] =
    [("rows", "u32"), ("cols", "u32"), ("t", "u32"), ("row_first", "u32"), ("stride", "u32")];

/// Chosen experts and the bits of their factors.
const ROUTES: Binding = ("routes", "u32", Ro);

/// The numbers of a product with chosen matrices.
const CHOSEN: [Param; 9] = [
    ("rows", "u32"),
    ("cols", "u32"),
    ("pairs", "u32"),
    ("used", "u32"),
    ("each", "u32"),
    ("matrix_in_expert", "u32"),
    ("first", "u32"),
    ("held", "u32"),
    ("stride", "u32"),
];

/// Begins the source of a product of a format of blocks: bindings (`more` behind the weights), table,
/// decoder. Also returns whether the format has minima.
fn product(format: Format, more: &[Binding], params: &[Param]) -> (Source, bool) {
    let rounded = [("q", "vec4<u32>", Ro), ("scale", "f32", Ro), ("sums", "i32", Ro), ("out", "f32", Rw)];
    let bindings = [&[("w", "u32", Ro)], more, &rounded].concat();
    let (pieces, has_minima) = decoder(format);
    let aligned = if format.block_bytes().is_multiple_of(4) { "aligned" } else { "unaligned" };
    let mut source = Source::new(&bindings, params)
        .constant("BLOCK_BYTES", format!("{}u", format.block_bytes()))
        .constant("HAS_MINIMA", has_minima)
        .table(table_of(format))
        .push(piece(WEIGHTS, aligned))
        .push(piece(WEIGHTS, "blocks"));
    for piece in pieces {
        source = source.push(piece);
    }
    (source, has_minima)
}

/// Completes the source of a product with few activation rows; `place` names the piece that says which
/// matrix and rows a workgroup takes.
fn matvec((source, has_minima): (Source, bool), format: Format, tokens: u32, place: &str) -> Shader {
    let parts = if tokens == 1 { 128 } else { 64 };
    let minima = if has_minima { TILES.matvec_rows * tokens * (parts + 1) } else { 1 };
    source
        .constant("TOKENS", format!("{tokens}u"))
        .constant("PARTS", format!("{parts}u"))
        .constant("MINIMA_LEN", format!("{minima}u"))
        .push(piece(MATVEC, "place"))
        .push(piece(MATVEC, place))
        .push(piece(MATVEC, "chain"))
        .push(piece(MATVEC, if format.block_len() == 32 { "short" } else { "long" }))
        .finish()
}

fn matmul(format: Format) -> Shader {
    let (source, has_minima) = product(format, &[], &PRODUCT);
    source
        .constant("SUMS_LEN", if has_minima { "4u * TOKENS" } else { "1u" })
        .constant("MINIMA_LEN", if has_minima { "2u * ROWS" } else { "1u" })
        .push(piece(MATMUL, "place"))
        .push(piece(MATMUL, "blocks"))
        .push(piece(MATMUL, if format.block_len() == 32 { "short" } else { "long" }))
        .finish()
}

/// Begins the source of a product of a format of floats.
fn float_product(format: Format, more: &[Binding], params: &[Param]) -> Source {
    let name = match format {
        Format::F32 => "f32",
        Format::F16 => "f16",
        _ => "bf16",
    };
    let bindings = [&[("w", "u32", Ro)], more, &[("x", "f32", Ro), ("out", "f32", Rw)]].concat();
    Source::new(&bindings, params).push(piece(WEIGHTS, name))
}

/// As [`matvec`], for a format of floats.
fn matvec_float(source: Source, format: Format, tokens: u32, place: &str) -> Shader {
    source
        .constant("NUMBER_BYTES", format!("{}u", format.block_bytes()))
        .constant("TOKENS", format!("{tokens}u"))
        .constant("CHUNK", if tokens == 1 { "512u" } else { "256u" })
        .push(piece(MATVEC, "place"))
        .push(piece(MATVEC, place))
        .push(piece(MATVEC, "float"))
        .finish()
}

fn matmul_float(format: Format) -> Shader {
    float_product(format, &[], &PRODUCT).push(piece(MATMUL, "place")).push(piece(MATMUL, "float")).finish()
}

/// The numbers of attention; the kernels of parts have one more.
const ATTEND: [Param; 10] = [
    ("items", "u32"),
    ("kv_heads", "u32"),
    ("group", "u32"),
    ("d", "u32"),
    ("scale", "f32"),
    ("cap", "f32"),
    ("window", "u32"),
    ("first_keys", "u32"),
    ("has_sinks", "u32"),
    ("lse_width", "u32"),
];

/// Returns the numbers of the kernels of parts.
fn attend_part_params() -> Vec<Param> {
    [&ATTEND[..], &[("parts", "u32")]].concat()
}

/// Adds what attends to a part, for heads of a width. The threads of a group of vectors have a pair of
/// dimensions each; the widest heads take several.
fn part(source: Source, width: AttendWidth) -> Source {
    let (pair_threads, groups, slots) = match width {
        AttendWidth::D64 => (32, 1, 1),
        AttendWidth::D128 => (64, 2, 1),
        AttendWidth::D256 => (128, 4, 1),
        AttendWidth::D576 => (128, 4, 3),
    };
    // Queries of wider heads would fill the memory of a workgroup.
    let has_queries = width.dims() <= 128;
    source
        .constant("HAS_QUERIES", has_queries)
        .constant("QUERIES_LEN", format!("{}u", if has_queries { 4 * width.dims() } else { 1 }))
        .constant("PAIR_THREADS", format!("{pair_threads}u"))
        .constant("GROUPS", format!("{groups}u"))
        .constant("SLOTS", format!("{slots}u"))
        .push(piece(ATTENTION, "item"))
        .push(piece(ATTENTION, "visible"))
        .push(piece(ATTENTION, "part"))
}

fn attend(width: AttendWidth) -> Shader {
    let bindings = [
        ("q", "vec2<f32>", Ro),
        ("keys", "u32", Ro),
        ("values", "u32", Ro),
        ("blocks", "u32", Ro),
        ("items", "u32", Ro),
        ("sinks", "f32", Ro),
        ("out", "vec2<f32>", Rw),
        ("lse", "f32", Rw),
    ];
    part(Source::new(&bindings, &ATTEND), width).push(piece(ATTENTION, "attend")).finish()
}

fn attend_part(width: AttendWidth) -> Shader {
    let bindings = [
        ("q", "vec2<f32>", Ro),
        ("keys", "u32", Ro),
        ("values", "u32", Ro),
        ("blocks", "u32", Ro),
        ("items", "u32", Ro),
        ("states", "f32", Rw),
    ];
    part(Source::new(&bindings, &attend_part_params()), width).push(piece(ATTENTION, "attend_part")).finish()
}

fn attend_join() -> Shader {
    let bindings = [
        ("states", "f32", Ro),
        ("items", "u32", Ro),
        ("sinks", "f32", Ro),
        ("out", "vec2<f32>", Rw),
        ("lse", "f32", Rw),
    ];
    Source::new(&bindings, &attend_part_params())
        .push(piece(ATTENTION, "item"))
        .push(piece(ATTENTION, "attend_join"))
        .finish()
}

fn score() -> Shader {
    let bindings = [
        ("q", "vec2<f32>", Ro),
        ("keys", "u32", Ro),
        ("blocks", "u32", Ro),
        ("lse", "f32", Ro),
        ("out", "f32", Rw),
    ];
    let params = [
        ("n", "u32"),
        ("row", "u32"),
        ("rows", "u32"),
        ("position", "u32"),
        ("q_width", "u32"),
        ("head", "u32"),
        ("lse_width", "u32"),
        ("kv_heads", "u32"),
        ("kv_head", "u32"),
        ("d", "u32"),
        ("scale", "f32"),
        ("cap", "f32"),
        ("window", "u32"),
        ("first_keys", "u32"),
    ];
    Source::new(&bindings, &params)
        .push(piece(ATTENTION, "visible"))
        .push(piece(ATTENTION, "score"))
        .push(piece(NUMBERS, "main"))
        .finish()
}
