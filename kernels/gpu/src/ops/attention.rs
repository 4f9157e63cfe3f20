//! Launches of attention: keys and values in blocks of 32 slots, queries in items.

use baton_kernels_cpu::PART;

use crate::device::{Buffer, Device, Launch};
use crate::kernel::{ATTEND_VECTORS, AttendWidth, Kernel};

use super::{each, table, words};

/// The most bytes of states in one launch of [`attend_parts`], unless one item has more.
const STATES_BYTES_MAX: u64 = 64 << 20;

/// The keys and values of one layer, `[blocks, heads, 32, d]` each, as [`Kernel::Append`] lays them out.
#[derive(Debug, Clone)]
pub struct KvBuffers {
    /// Keys.
    pub keys: Buffer,
    /// Values.
    pub values: Buffer,
    /// Heads of a block.
    pub heads: usize,
    /// Dimensions of a head; even.
    pub d: usize,
}

impl KvBuffers {
    /// Returns the bytes of the keys, or of the values, of one block.
    pub fn block_bytes(heads: usize, d: usize) -> u64 {
        words(heads * 32 * d / 2)
    }
}

/// Consecutive queries of one sequence, and some heads of each group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttentionItem {
    /// The first row of queries and outputs.
    pub row: usize,
    /// Rows.
    pub rows: usize,
    /// The position of the first row among the sequence's cached tokens.
    pub position: usize,
    /// Where the sequence's block ids begin in the table.
    pub table_at: usize,
    /// The first head of each group.
    pub head: usize,
    /// Heads of each group.
    pub heads: usize,
}

/// Items of attention, uploaded.
#[derive(Debug, Clone)]
pub struct AttentionItems {
    /// The items.
    pub list: Vec<AttentionItem>,
    /// Their [words](item_words).
    pub table: Buffer,
}

impl AttentionItems {
    /// Uploads items.
    pub fn new(device: &dyn Device, list: &[AttentionItem]) -> Self {
        Self { list: list.to_vec(), table: table(device, &item_words(list)) }
    }
}

/// Returns the words of items, as [`Kernel::Attend`] reads them.
///
/// # Panics
/// If an item has too many vectors.
pub fn item_words(items: &[AttentionItem]) -> Vec<u32> {
    let words = |item: &AttentionItem| {
        let AttentionItem { row, rows, position, table_at, head, heads } = *item;
        assert!(rows * heads <= ATTEND_VECTORS, "{rows} rows of {heads} heads in one item");
        [row, rows, position, table_at, head, heads, 0, 0].map(|n| n as u32)
    };
    items.iter().flat_map(words).collect()
}

/// What all items of one attention have in common.
#[derive(Debug, Clone, Copy)]
pub struct AttentionArgs<'a> {
    /// Queries, `[t, kv heads · group · d]`.
    pub q: &'a Buffer,
    /// Keys and values.
    pub kv: &'a KvBuffers,
    /// Ids of blocks, uploaded.
    pub blocks: &'a Buffer,
    /// The items.
    pub items: &'a AttentionItems,
    /// Query heads of a key head.
    pub group: usize,
    /// The factor of query-key products.
    pub scale: f32,
    /// The bound of scores.
    pub cap: Option<f32>,
    /// The score of each query head's sink; `None` if there are none.
    pub sinks: Option<&'a Buffer>,
    /// Newest keys seen, the query's own included; `u32::MAX` for all.
    pub window: u32,
    /// Keys from the start that are always seen.
    pub first_keys: u32,
    /// Outputs, as `q`.
    pub out: &'a Buffer,
    /// Log-sum-exps, `[t, lse_width]`.
    pub lse: &'a Buffer,
    /// Numbers of a row of `lse`.
    pub lse_width: usize,
}

impl AttentionArgs<'_> {
    fn width(&self) -> AttendWidth {
        AttendWidth::of(self.kv.d).expect("the caller has asked `takes_heads_of`")
    }

    fn params(&self) -> Vec<u32> {
        vec![
            self.items.list.len() as u32,
            self.kv.heads as u32,
            self.group as u32,
            self.kv.d as u32,
            self.scale.to_bits(),
            self.cap.unwrap_or(0.0).to_bits(),
            self.window,
            self.first_keys,
            u32::from(self.sinks.is_some()),
            self.lse_width as u32,
        ]
    }

    /// Returns the sinks; if there are none, something that no kernel reads then.
    fn sinks(&self) -> &Buffer {
        self.sinks.unwrap_or(&self.items.table)
    }
}

/// Attends every item to the keys that it sees.
///
/// # Panics
/// If heads are wider than [`AttendWidth`] has variants, or an item has too many vectors.
pub fn attend(device: &dyn Device, args: &AttentionArgs<'_>) {
    let AttentionItems { list, table } = args.items;
    if list.is_empty() {
        return;
    }
    let groups = [list.len() as u32, args.kv.heads as u32, 1];
    let (keys, values) = (&args.kv.keys, &args.kv.values);
    let buffers = &[args.q, keys, values, args.blocks, table, args.sinks(), args.out, args.lse];
    device.launch(&Launch { kernel: Kernel::Attend(args.width()), groups, params: &args.params(), buffers });
}

/// As [`attend`], with a workgroup for each part of 256 keys: the same bits, faster for few items with many
/// keys.
///
/// # Panics
/// As [`attend`].
pub fn attend_parts(device: &dyn Device, args: &AttentionArgs<'_>) {
    let list = &args.items.list;
    let Some(keys) = list.iter().map(|item| item.position + item.rows).max() else { return };
    let parts = keys.div_ceil(PART);
    let one = states_bytes((args.kv.heads, args.kv.d), parts);
    let most = (STATES_BYTES_MAX / one).max(1) as usize;
    if list.len() <= most {
        return attend_in_parts(device, args, parts);
    }
    for some in list.chunks(most) {
        let items = &AttentionItems::new(device, some);
        attend_in_parts(device, &AttentionArgs { items, ..*args }, parts);
    }
}

/// Returns the bytes of the states of one item.
fn states_bytes((heads, d): (usize, usize), parts: usize) -> u64 {
    words(heads * parts * ATTEND_VECTORS * (2 + d))
}

/// Returns the most bytes that [`attend_parts`] allocates for so many items with up to `keys` keys.
pub fn attend_states_bytes(items: usize, heads_and_d: (usize, usize), keys: usize) -> u64 {
    if keys <= PART {
        return 0;
    }
    let one = states_bytes(heads_and_d, keys.div_ceil(PART));
    one * (items as u64).min((STATES_BYTES_MAX / one).max(1))
}

fn attend_in_parts(device: &dyn Device, args: &AttentionArgs<'_>, parts: usize) {
    let AttentionItems { list, table: items } = args.items;
    let states = device.alloc(list.len() as u64 * states_bytes((args.kv.heads, args.kv.d), parts));
    let mut params = args.params();
    params.push(parts as u32);
    let groups = [list.len() as u32, args.kv.heads as u32, parts as u32];
    let buffers = &[args.q, &args.kv.keys, &args.kv.values, args.blocks, items, &states];
    device.launch(&Launch { kernel: Kernel::AttendPart(args.width()), groups, params: &params, buffers });
    let groups = [list.len() as u32, args.kv.heads as u32, 1];
    let buffers = &[&states, items, args.sinks(), args.out, args.lse];
    device.launch(&Launch { kernel: Kernel::AttendJoin(args.width()), groups, params: &params, buffers });
}

/// Writes keys and values of `t` rows: `places` is a table of `[t, 2]`, each with a row of `k` and `v`, and
/// its slot.
pub fn append(
    device: &dyn Device,
    kv: &KvBuffers,
    (k, v): (&Buffer, &Buffer),
    (places, t): (&Buffer, usize),
) {
    let params = [kv.heads as u32, kv.d as u32];
    each(device, Kernel::Append, t * kv.heads * kv.d / 2, &params, &[k, v, places, &kv.keys, &kv.values]);
}

/// Copies the keys and values of single tokens of single heads: `(head, slot from, slot to)`. No slot is
/// both read and written.
pub fn keep(device: &dyn Device, kv: &KvBuffers, moves: &[(usize, usize, usize)]) {
    let list: Vec<u32> =
        moves.iter().flat_map(|(head, from, to)| [*head as u32, *from as u32, *to as u32]).collect();
    let list = table(device, &list);
    let n = moves.len() * kv.d / 2;
    each(device, Kernel::Keep, n, &[kv.heads as u32, kv.d as u32], &[&kv.keys, &kv.values, &list]);
}

/// The queries whose softmax weights are added up.
#[derive(Debug, Clone, Copy)]
pub struct ScoreArgs<'a> {
    /// Queries, `[t, q_width]`.
    pub q: &'a Buffer,
    /// Numbers of a row of `q`.
    pub q_width: usize,
    /// Keys and values.
    pub kv: &'a KvBuffers,
    /// The ids of the sequence's blocks, uploaded.
    pub blocks: &'a Buffer,
    /// Log-sum-exps, `[t, lse_width]`.
    pub lse: &'a Buffer,
    /// Numbers of a row of `lse`.
    pub lse_width: usize,
    /// The first row.
    pub row: usize,
    /// Rows.
    pub rows: usize,
    /// The position of the first row.
    pub position: usize,
    /// The query head.
    pub head: usize,
    /// Its key head.
    pub kv_head: usize,
    /// The factor of query-key products.
    pub scale: f32,
    /// The bound of scores.
    pub cap: Option<f32>,
    /// As [`AttentionArgs::window`].
    pub window: u32,
    /// As [`AttentionArgs::first_keys`].
    pub first_keys: u32,
}

/// Sets `out[key]` to the sum of the queries' weights of that key, for `keys` keys.
pub fn score(device: &dyn Device, args: &ScoreArgs<'_>, keys: usize, out: &Buffer) {
    let numbers =
        [args.row, args.rows, args.position, args.q_width, args.head, args.lse_width].map(|n| n as u32);
    let mut params = numbers.to_vec();
    params.extend([args.kv.heads, args.kv_head, args.kv.d].map(|n| n as u32));
    params.extend([args.scale.to_bits(), args.cap.unwrap_or(0.0).to_bits(), args.window, args.first_keys]);
    each(device, Kernel::Score, keys, &params, &[args.q, &args.kv.keys, args.blocks, args.lse, out]);
}

/// Copies one block of keys and values to another block of the same layer.
pub fn copy_block(device: &dyn Device, kv: &KvBuffers, from: usize, to: usize) {
    let bytes = KvBuffers::block_bytes(kv.heads, kv.d);
    let between = device.alloc(bytes);
    for buffer in [&kv.keys, &kv.values] {
        device.copy(buffer, from as u64 * bytes, &between, 0, bytes);
        device.copy(&between, 0, buffer, to as u64 * bytes, bytes);
    }
}
