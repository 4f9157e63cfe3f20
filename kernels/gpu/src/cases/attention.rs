//! Cases of attention: against the definition, in parts, and with queries one by one.

use baton_kernels_cpu::attention::{attend_rows_at, score_rows_at};
use baton_kernels_cpu::{Dispatch, Queries, RowLayout, Visible};

use super::cache::{BLOCK, Stored, append, buffers};
use super::probe::{BLANK, Probe};
use crate::device::Buffer;
use crate::kernel::{ATTEND_VECTORS, AttendWidth, Kernel};
use crate::ops::{self, AttentionArgs, AttentionItem, AttentionItems, KvBuffers, ScoreArgs};

/// The largest error of outputs, relative to the bound of values, of which they are averages; and of
/// log-sum-exps. Of sums of weights it is relative to the largest one.
const ATTENTION_ERROR: f32 = 6e-6;

/// The bound of the values' magnitudes.
const VALUES_MAX: f32 = 2.0;

/// What is attended to, and how.
#[derive(Debug, Clone)]
struct Shape {
    d: usize,
    kv_heads: usize,
    group: usize,
    /// Keys and query rows of each sequence. The rows are those of the last keys.
    sequences: Vec<(usize, usize)>,
    window: usize,
    first_keys: usize,
    cap: Option<f32>,
    sinks: bool,
}

impl Shape {
    const fn plain(d: usize, kv_heads: usize, group: usize) -> Self {
        let sequences = Vec::new();
        Self { d, kv_heads, group, sequences, window: usize::MAX, first_keys: 0, cap: None, sinks: false }
    }

    fn of(self, sequences: &[(usize, usize)]) -> Self {
        Self { sequences: sequences.to_vec(), ..self }
    }

    fn heads(&self) -> usize {
        self.kv_heads * self.group
    }

    fn scale(&self) -> f32 {
        1.0 / (self.d as f32).sqrt()
    }

    fn visible(&self, position: usize) -> Visible {
        Visible { position, sinks: self.first_keys, window: self.window }
    }
}

/// The shapes of a variant. Their heads have at most its dimensions, and more than the next narrower one's.
fn shapes(width: AttendWidth) -> Vec<Shape> {
    let windowed = |shape: Shape, window, first_keys| Shape { window, first_keys, ..shape };
    let capped = |shape| Shape { cap: Some(20.0), ..shape };
    let sunk = |shape| Shape { sinks: true, ..shape };
    let (narrow, middle, wide) = match width {
        AttendWidth::D64 => (2, 16, 64),
        AttendWidth::D128 => (80, 96, 128),
        AttendWidth::D256 => (130, 192, 256),
        AttendWidth::D576 => (288, 320, 576),
    };
    vec![
        Shape::plain(narrow, 1, 1).of(&[(1, 1)]),
        Shape::plain(wide, 2, 2).of(&[(31, 3), (32, 1)]),
        sunk(Shape::plain(middle, 3, 3).of(&[(33, 5)])),
        Shape::plain(wide, 2, 7).of(&[(255, 3), (256, 2)]),
        capped(Shape::plain(narrow, 1, 16).of(&[(257, 2)])),
        windowed(Shape::plain(middle, 2, 3), 40, 5).of(&[(600, 7)]),
        sunk(windowed(Shape::plain(wide, 1, 2), 1, 0).of(&[(40, 9)])),
        sunk(capped(Shape::plain(wide, 1, 20).of(&[(288, 2), (45, 1)]))),
        windowed(Shape::plain(wide, 1, 1), 300, 33).of(&[(600, 17)]),
    ]
}

/// A shape with numbers, on the host and on the device.
struct Case {
    shape: Shape,
    q: Vec<f32>,
    sinks: Vec<f32>,
    stored: Vec<Stored>,
    kv: KvBuffers,
    /// Ids of the blocks of all sequences.
    table: Vec<u32>,
    on_device: [Buffer; 3],
}

/// Numbers of a row of log-sum-exps behind those of the heads.
const LSE_PAD: usize = 3;

impl Case {
    fn new(probe: &mut Probe<'_>, shape: &Shape) -> Self {
        probe.shape(format!("{shape:?}"));
        let (heads, width) = ((shape.kv_heads, shape.d), shape.kv_heads * shape.d);
        let blocks: usize = shape.sequences.iter().map(|(keys, _)| keys.div_ceil(BLOCK)).sum();
        let ids = probe.random.permutation(blocks + 2);
        let kv = buffers(probe, blocks + 2, heads);
        let (mut stored, mut at) = (Vec::new(), 0);
        for (keys, _) in &shape.sequences {
            let (k, v) = (probe.numbers(keys * width, 3.0), probe.numbers(keys * width, VALUES_MAX));
            let slot = |key: usize| ids[at + key / BLOCK] * BLOCK + key % BLOCK;
            let places: Vec<(usize, usize)> = (0..*keys).map(|key| (key, slot(key))).collect();
            append(probe.device, &kv, (&probe.place(&k), &probe.place(&v)), &places);
            stored.push(Stored::new(&k, &v, heads));
            at += keys.div_ceil(BLOCK);
        }
        let rows: usize = shape.sequences.iter().map(|(_, rows)| rows).sum();
        let q = probe.numbers((rows + 1) * shape.heads() * shape.d, 3.0);
        let sinks = if shape.sinks { probe.numbers(shape.heads(), 3.0) } else { Vec::new() };
        let table: Vec<u32> = ids.iter().map(|id| *id as u32).collect();
        let on_device =
            [probe.place(&q), ops::table(probe.device, &table), ops::floats(probe.device, &sinks)];
        Self { shape: shape.clone(), q, sinks, stored, kv, table, on_device }
    }

    /// Query rows, with one that no item has.
    fn rows(&self) -> usize {
        self.q.len() / (self.shape.heads() * self.shape.d)
    }

    fn lse_width(&self) -> usize {
        self.shape.heads() + LSE_PAD
    }

    /// Returns outputs and log-sum-exps by definition. What no query writes is blank.
    fn want(&self) -> (Vec<f32>, Vec<f32>) {
        let Shape { d, kv_heads, group, .. } = self.shape;
        let stride = kv_heads * group * d;
        let mut out = vec![BLANK; self.q.len()];
        let mut lse = vec![BLANK; self.rows() * self.lse_width()];
        let mut row = 0;
        for ((keys, rows), stored) in self.shape.sequences.iter().zip(&self.stored) {
            for g in 0..kv_heads {
                let at = row * stride + g * group * d;
                let layout = RowLayout { tokens: *rows, heads: group, d, stride };
                let queries = Queries {
                    q: &self.q[at..],
                    rows: layout,
                    visible: self.shape.visible(keys - rows),
                    scale: self.shape.scale(),
                    cap: self.shape.cap,
                    sinks: self.sinks.chunks(group).nth(g).unwrap_or(&[]),
                };
                let mut log = vec![0.0; rows * group];
                attend_rows_at(Dispatch::Scalar, &queries, &stored.blocks(g), &mut out[at..], &mut log);
                for (i, log) in log.chunks(group).enumerate() {
                    lse[(row + i) * self.lse_width() + g * group..][..group].copy_from_slice(log);
                }
            }
            row += rows;
        }
        (out, lse)
    }

    /// Returns items of at most `rows_max` rows and `heads_max` heads of each group.
    fn items(&self, rows_max: usize, heads_max: usize) -> Vec<AttentionItem> {
        let heads_max = heads_max.min(ATTEND_VECTORS);
        let (mut items, mut first_row, mut table_at) = (Vec::new(), 0, 0);
        for (keys, rows) in &self.shape.sequences {
            for head in (0..self.shape.group).step_by(heads_max) {
                let heads = heads_max.min(self.shape.group - head);
                let each = rows_max.min(ATTEND_VECTORS / heads);
                for i in (0..*rows).step_by(each) {
                    let (row, n) = (first_row + i, each.min(rows - i));
                    items.push(AttentionItem {
                        row,
                        rows: n,
                        position: keys - rows + i,
                        table_at,
                        head,
                        heads,
                    });
                }
            }
            first_row += rows;
            table_at += keys.div_ceil(BLOCK);
        }
        items
    }

    /// Attends on the device.
    fn run(&self, probe: &Probe<'_>, items: &[AttentionItem], parts: bool) -> (Vec<f32>, Vec<f32>) {
        let (out, lse) = (probe.blank(self.q.len()), probe.blank(self.rows() * self.lse_width()));
        let [q, blocks, sinks] = &self.on_device;
        let whole = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let args = AttentionArgs {
            q,
            kv: &self.kv,
            blocks,
            items: &AttentionItems::new(probe.device, items),
            group: self.shape.group,
            scale: self.shape.scale(),
            cap: self.shape.cap,
            sinks: self.shape.sinks.then_some(sinks),
            window: whole(self.shape.window),
            first_keys: whole(self.shape.first_keys),
            out: &out,
            lse: &lse,
            lse_width: self.lse_width(),
        };
        if parts {
            ops::attend_parts(probe.device, &args);
        } else {
            ops::attend(probe.device, &args);
        }
        (probe.read(&out, self.q.len()), probe.read(&lse, self.rows() * self.lse_width()))
    }
}

/// All cases of the kernels of attention of one width.
pub(super) fn check(probe: &mut Probe<'_>, width: AttendWidth) {
    for (i, shape) in shapes(width).into_iter().enumerate() {
        // The two kernels that work in parts run together; each has its own half of the shapes.
        let skip = match probe.kernel {
            Kernel::AttendPart(_) => i % 2 == 0,
            Kernel::AttendJoin(_) => i % 2 == 1,
            _ => false,
        };
        if skip {
            continue;
        }
        let case = Case::new(probe, &shape);
        let (out, lse) = case.want();
        let all = case.items(usize::MAX, usize::MAX);
        let got = case.run(probe, &all, false);
        check_out(probe, &got.0, &out);
        check_lse(probe, &got.1, &lse);
        if probe.kernel == Kernel::Attend(width) {
            for (rows, heads) in [(1, usize::MAX), (2, 1), (3, 2)] {
                let few = case.run(probe, &case.items(rows, heads), false);
                let what = format!("{rows} rows of {heads} heads in an item: ");
                probe.equal(&format!("{what}out"), &few.0, &got.0);
                probe.equal(&format!("{what}lse"), &few.1, &got.1);
            }
        } else {
            for items in [all, case.items(1, usize::MAX), case.items(2, 3)] {
                let parts = case.run(probe, &items, true);
                probe.equal("in parts: out", &parts.0, &got.0);
                probe.equal("in parts: lse", &parts.1, &got.1);
            }
        }
    }
}

/// Compares outputs one by one: an average near 0 has the error of its largest term.
fn check_out(probe: &Probe<'_>, got: &[f32], want: &[f32]) {
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let error = (got - want).abs() / VALUES_MAX;
        if got != want && (error > ATTENTION_ERROR || error.is_nan()) {
            probe.fail("out", i, *got, *want, &format!("; error {error:.2e}, at most {ATTENTION_ERROR:.0e}"));
        }
    }
}

/// Compares log-sum-exps one by one: a logarithm near 0 has the error of its largest term.
fn check_lse(probe: &Probe<'_>, got: &[f32], want: &[f32]) {
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let error = (got - want).abs() / want.abs().max(1.0);
        if got != want && (error > ATTENTION_ERROR || error.is_nan()) {
            probe.fail("lse", i, *got, *want, &format!("; error {error:.2e}, at most {ATTENTION_ERROR:.0e}"));
        }
    }
}

/// All cases of the sums of attention weights.
pub(super) fn check_score(probe: &mut Probe<'_>) {
    let windowed = |shape: Shape, window, first_keys| Shape { window, first_keys, ..shape };
    for shape in [
        Shape::plain(2, 1, 1).of(&[(1, 1)]),
        Shape::plain(64, 2, 3).of(&[(31, 4), (33, 2)]),
        windowed(Shape::plain(80, 1, 2), 40, 5).of(&[(257, 7)]),
        Shape { cap: Some(20.0), sinks: true, ..Shape::plain(128, 2, 2) }.of(&[(600, 3)]),
        Shape::plain(256, 1, 2).of(&[(256, 16)]),
        Shape::plain(576, 1, 1).of(&[(70, 33)]),
    ] {
        let case = Case::new(probe, &shape);
        let (_, lse) = case.want();
        let lse_on_device = probe.place(&lse);
        let (mut row, mut table_at) = (0, 0);
        for (i, (keys, rows)) in shape.sequences.iter().enumerate() {
            let blocks = ops::table(probe.device, &case.table[table_at..]);
            for head in 0..shape.heads() {
                let out = probe.blank(*keys);
                let args = ScoreArgs {
                    q: &case.on_device[0],
                    q_width: shape.heads() * shape.d,
                    kv: &case.kv,
                    blocks: &blocks,
                    lse: &lse_on_device,
                    lse_width: case.lse_width(),
                    row,
                    rows: *rows,
                    position: keys - rows,
                    head,
                    kv_head: head / shape.group,
                    scale: shape.scale(),
                    cap: shape.cap,
                    window: u32::try_from(shape.window).unwrap_or(u32::MAX),
                    first_keys: shape.first_keys as u32,
                };
                ops::score(probe.device, &args, *keys, &out);
                let want = want_scores(&case, &case.stored[i], &lse, &args, *keys);
                let got = probe.read(&out, *keys);
                for (key, (got, want)) in got.iter().zip(&want).enumerate() {
                    if *want == 0.0 && *got != 0.0 {
                        probe.fail("weights of hidden keys", key, *got, *want, "");
                    }
                }
                probe.near("weights", &got, &want, (*keys, ATTENTION_ERROR));
            }
            row += rows;
            table_at += keys.div_ceil(BLOCK);
        }
    }
}

/// The sums of weights by definition.
fn want_scores(case: &Case, stored: &Stored, lse: &[f32], args: &ScoreArgs<'_>, keys: usize) -> Vec<f32> {
    let d = case.shape.d;
    let queries = Queries {
        q: &case.q[args.row * args.q_width + args.head * d..],
        rows: RowLayout { tokens: args.rows, heads: 1, d, stride: args.q_width },
        visible: case.shape.visible(args.position),
        scale: args.scale,
        cap: args.cap,
        sinks: &[],
    };
    let log: Vec<f32> =
        (args.row..args.row + args.rows).map(|row| lse[row * args.lse_width + args.head]).collect();
    let mut want = vec![0.0; keys];
    score_rows_at(Dispatch::Scalar, &queries, &stored.blocks(args.kv_head), &log, &mut want);
    want
}
