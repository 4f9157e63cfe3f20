//! Attention: levels against the definition, the definition against `f64`, and independence of chunking.

use super::*;

/// A deterministic row of values in -2..2.
fn row(seed: u64, len: usize) -> Vec<f32> {
    let mut state = seed;
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1 << 22) as f32 - 2.0
        })
        .collect()
}

fn levels() -> impl Iterator<Item = Dispatch> {
    Dispatch::ALL.into_iter().filter(|level| level.is_available())
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|v| v.to_bits()).collect()
}

/// The keys and values of one KV head in blocks, stored between two other heads.
struct Cache {
    stores: Vec<KvStore>,
    keys: usize,
}

/// Tokens of each block. They are fewer than a block holds, so blocks of every length occur.
fn lens(keys: usize, block_len: usize) -> Vec<usize> {
    (0..keys).step_by(block_len).map(|first| block_len.min(keys - first)).collect()
}

fn rows(keys: usize, d: usize) -> (Vec<f32>, Vec<f32>) {
    (row(11, keys * d), row(12, keys * d))
}

impl Cache {
    fn new(keys: usize, d: usize, block_len: usize, format: KvFormat) -> Self {
        let (k, v) = rows(keys, d);
        let faults = vec![f32::NAN; d];
        let mut stores = Vec::new();
        let mut first = 0;
        for n in lens(keys, block_len) {
            let mut store = KvStore::new(format, d, 3, &KvMemory::default());
            for slot in 0..32 {
                // Other heads, and slots past the last key, must not change a result.
                store.write(0, slot, &faults, &faults);
                store.write(2, slot, &faults, &faults);
                let at = (first + slot) * d..(first + slot + 1) * d;
                if slot < n {
                    store.write(1, slot, &k[at.clone()], &v[at]);
                } else {
                    store.write(1, slot, &faults, &faults);
                }
            }
            first += n;
            stores.push(store);
        }
        Self { stores, keys }
    }

    fn blocks(&self, block_len: usize) -> Vec<KvBlock<'_>> {
        let lens = lens(self.keys, block_len);
        let blocks = self.stores.iter().zip(lens).enumerate();
        blocks.map(|(i, (store, n))| store.block(1, n, i * block_len)).collect()
    }
}

const FORMATS: [KvFormat; 4] = KvFormat::ALL;

fn attended(level: Dispatch, queries: &Queries<'_>, blocks: &[KvBlock<'_>]) -> (Vec<f32>, Vec<f32>) {
    let mut out = vec![f32::NAN; queries.q.len()];
    let mut lse = vec![f32::NAN; queries.rows.tokens * queries.rows.heads];
    attend_rows_at(level, queries, blocks, &mut out, &mut lse);
    (out, lse)
}

fn scored(level: Dispatch, queries: &Queries<'_>, blocks: &[KvBlock<'_>], lse: &[f32]) -> Vec<f32> {
    let keys: usize = blocks.iter().map(|block| block.n).sum();
    let mut acc = row(13, keys);
    score_rows_at(level, queries, blocks, lse, &mut acc);
    acc
}

#[test]
fn masks_follow_the_definition() {
    for (sinks, window) in [(0, usize::MAX), (0, 1), (0, 40), (3, 5), (50, 7), (100, usize::MAX)] {
        for position in [0, 5, 31, 32, 70, 1_000_000] {
            let visible = Visible { position, sinks, window };
            for token in 0..3 {
                for (first, n) in [(0, 32), (0, 7), (32, 32), (64, 9), (0, 1)] {
                    let mask = visible.mask(token, first, n);
                    for i in 0..32 {
                        let (key, query) = (first + i, position + token);
                        let near = window > query || key > query - window;
                        let want = i < n && key <= query && (key < sinks || near);
                        assert_eq!(mask >> i & 1 == 1, want, "{visible:?} {token} {key}");
                    }
                }
            }
        }
    }
}

#[test]
fn every_level_equals_the_definition() {
    let cases: [(usize, usize, usize, usize); 8] = [
        (1, 1, 1, 16),
        (7, 3, 2, 8),
        (33, 5, 4, 20),
        (70, 9, 1, 64),
        (100, 4, 3, 128),
        (131, 6, 2, 96),
        (64, 2, 7, 33),
        (2 * PART + 40, 3, 2, 16),
    ];
    for (keys, tokens, heads, d) in cases {
        let rows = RowLayout { tokens, heads, d, stride: heads * d + 3 };
        let q = row(14, tokens * rows.stride);
        let position = keys.saturating_sub(tokens);
        let head_sinks = row(17, heads);
        for (sinks, window, cap) in [(0, usize::MAX, None), (2, 9, Some(1.25)), (40, 33, Some(50.0))] {
            let visible = Visible { position, sinks, window };
            let sinks = if cap.is_none() { &[] } else { head_sinks.as_slice() };
            let queries = Queries { q: &q, rows, visible, scale: 0.4, cap, sinks };
            for (block_len, format) in FORMATS.into_iter().flat_map(|format| [(32, format), (20, format)]) {
                let cache = Cache::new(keys, d, block_len, format);
                let blocks = cache.blocks(block_len);
                let (want, want_lse) = attended(Dispatch::Scalar, &queries, &blocks);
                let want_scores = scored(Dispatch::Scalar, &queries, &blocks, &want_lse);
                for level in levels() {
                    let case = format!("{level:?} {keys} {rows:?} {visible:?} {block_len} {format:?}");
                    let (have, lse) = attended(level, &queries, &blocks);
                    for r in 0..tokens * heads {
                        let at = rows.at(r / heads, r % heads);
                        assert_eq!(bits(&have[at.clone()]), bits(&want[at]), "{case}");
                    }
                    assert_eq!(bits(&lse), bits(&want_lse), "{case}");
                    assert_eq!(bits(&scored(level, &queries, &blocks, &lse)), bits(&want_scores), "{case}");
                }
            }
        }
    }
}

#[test]
fn the_definition_is_near_exact_softmax() {
    let (keys, tokens, heads, d) = (2 * PART + 150, 6, 2, 48);
    let (k, v) = rows(keys, d);
    let rows = RowLayout { tokens, heads, d, stride: heads * d };
    let q = row(15, tokens * rows.stride);
    let scale = 0.3f32;
    // Tolerances for the rounding of binary16 and of bytes: values are at most 2, and 48 products are summed.
    let cases = [(KvFormat::F32, 1e-5), (KvFormat::F16, 0.01), (KvFormat::Q8, 0.2), (KvFormat::Q4, 2.0)];
    let head_sinks = [1.5, -0.5];
    let kinds: [(usize, usize, Option<f32>, &[f32]); 3] =
        [(0, usize::MAX, None, &[]), (4, 50, Some(2.0), &[]), (0, 70, Some(9.0), &head_sinks)];
    for (kind, (format, slack)) in kinds.into_iter().flat_map(|kind| cases.map(|case| (kind, case))) {
        let (sinks, window, cap, head_sinks) = kind;
        let cache = Cache::new(keys, d, 32, format);
        let visible = Visible { position: keys - tokens, sinks, window };
        let queries = Queries { q: &q, rows, visible, scale, cap, sinks: head_sinks };
        let blocks = cache.blocks(32);
        let (out, lse) = attended(Dispatch::Scalar, &queries, &blocks);
        let mut acc = vec![0.0; keys];
        score_rows_at(Dispatch::Scalar, &queries, &blocks, &lse, &mut acc);
        let mut want_acc = vec![0.0f64; keys];
        for token in 0..tokens {
            for head in 0..heads {
                let q = &q[rows.at(token, head)];
                let query = visible.position + token;
                let score = |i: usize| -> f64 {
                    let k = &k[i * d..][..d];
                    let score = q.iter().zip(k).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>()
                        * f64::from(scale);
                    cap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh())
                };
                let sink = head_sinks.get(head).map_or(0.0, |sink| f64::from(*sink).exp());
                let seen: Vec<usize> =
                    (0..=query).filter(|&i| i < sinks || window > query || i > query - window).collect();
                let total: f64 = sink + seen.iter().map(|&i| score(i).exp()).sum::<f64>();
                assert!((f64::from(lse[token * heads + head]) - total.ln()).abs() < slack);
                for &i in &seen {
                    want_acc[i] += score(i).exp() / total;
                }
                for (j, have) in out[rows.at(token, head)].iter().enumerate() {
                    let weighted = |&i: &usize| score(i).exp() / total * f64::from(v[i * d + j]);
                    let want: f64 = seen.iter().map(weighted).sum();
                    assert!((f64::from(*have) - want).abs() < slack, "{have} is not {want} in {format:?}");
                }
            }
        }
        for (have, want) in acc.iter().zip(want_acc) {
            assert!((f64::from(*have) - want).abs() < slack, "{have} is not {want} in {format:?}");
        }
    }
}

#[test]
fn rows_together_equal_rows_alone() {
    let (keys, tokens, heads, d) = (90, 58, 2, 32);
    let rows = RowLayout { tokens, heads, d, stride: heads * d };
    let q = row(16, tokens * rows.stride);
    let visible = Visible { position: keys - tokens, sinks: 3, window: 40 };
    let queries = Queries { q: &q, rows, visible, scale: 0.2, cap: Some(1.5), sinks: &[0.3, -0.4] };
    for (format, token) in
        FORMATS.into_iter().flat_map(|format| (0..tokens).map(move |token| (format, token)))
    {
        let cache = Cache::new(keys, d, 32, format);
        let (together, together_lse) = attended(Dispatch::best(), &queries, &cache.blocks(32));
        // A cache that ends with this token, so its last block is shorter than in the call above.
        let ended = Cache { keys: visible.position + token + 1, ..cache };
        for head in 0..heads {
            let at = rows.at(token, head);
            let one = Queries {
                q: &q[at.clone()],
                rows: RowLayout { tokens: 1, heads: 1, d, stride: d },
                visible: Visible { position: visible.position + token, ..visible },
                scale: 0.2,
                cap: Some(1.5),
                sinks: &[[0.3, -0.4][head]],
            };
            let (alone, lse) = attended(Dispatch::best(), &one, &ended.blocks(32));
            assert_eq!(bits(&alone), bits(&together[at]), "token {token}, head {head}");
            assert_eq!(lse[0].to_bits(), together_lse[token * heads + head].to_bits());
        }
    }
}

#[test]
fn parts_joined_equal_all_at_once() {
    let (keys, tokens, heads, d) = (3 * PART + 10, 5, 2, 24);
    let rows = RowLayout { tokens, heads, d, stride: heads * d };
    let q = row(20, tokens * rows.stride);
    for (format, window) in FORMATS.into_iter().flat_map(|format| [(format, usize::MAX), (format, 300)]) {
        let visible = Visible { position: keys - tokens, sinks: 3, window };
        let queries = Queries { q: &q, rows, visible, scale: 0.2, cap: None, sinks: &[0.3, -0.4] };
        let cache = Cache::new(keys, d, 32, format);
        let blocks = cache.blocks(32);
        for level in levels() {
            let want = attended(level, &queries, &blocks);
            let of_part = |blocks: &[KvBlock<'_>]| attend_part_at(level, &queries, blocks);
            let parts: Vec<PartState> = parts_of(&blocks).map(of_part).collect();
            assert_eq!(parts.len(), 4);
            let (mut out, mut lse) = (vec![f32::NAN; q.len()], vec![f32::NAN; tokens * heads]);
            join_parts_at(level, &queries, &parts, &mut out, &mut lse);
            assert_eq!((bits(&out), bits(&lse)), (bits(&want.0), bits(&want.1)), "{level:?} {format:?}");
        }
    }
}

#[test]
fn a_sink_alone_gives_zero() {
    for level in levels() {
        let q = row(18, 16);
        let rows = RowLayout { tokens: 1, heads: 2, d: 8, stride: 16 };
        let visible = Visible::causal(3);
        let queries = Queries { q: &q, rows, visible, scale: 1.0, cap: None, sinks: &[0.75, -3.0] };
        let (out, lse) = attended(level, &queries, &[]);
        assert_eq!(out, [0.0; 16]);
        assert_eq!(lse, [0.75, -3.0]);
    }
}

#[test]
fn no_key_gives_zero() {
    for level in levels() {
        let q = row(18, 16);
        let rows = RowLayout { tokens: 1, heads: 1, d: 16, stride: 16 };
        let queries = Queries { q: &q, rows, visible: Visible::causal(3), scale: 1.0, cap: None, sinks: &[] };
        let (out, lse) = attended(level, &queries, &[]);
        assert_eq!(out, [0.0; 16]);
        assert_eq!(lse, [f32::NEG_INFINITY]);
    }
}

#[test]
fn a_hidden_fault_stays_hidden() {
    let q = row(19, 2 * 16);
    let rows = RowLayout { tokens: 2, heads: 1, d: 16, stride: 16 };
    let queries = Queries { q: &q, rows, visible: Visible::causal(38), scale: 0.1, cap: None, sinks: &[] };
    for (format, level) in FORMATS.into_iter().flat_map(|format| levels().map(move |level| (format, level))) {
        let mut cache = Cache::new(40, 16, 32, format);
        let (mut k, mut v) = ([0.5; 16], [0.5; 16]);
        (k[3], v[5]) = (f32::NAN, f32::INFINITY);
        cache.stores[1].write(1, 7, &k, &v);
        let (out, lse) = attended(level, &queries, &cache.blocks(32));
        assert!(out[..16].iter().all(|v| v.is_finite()) && lse[0].is_finite(), "{level:?} {format:?}");
        assert!(out[16..].iter().all(|v| v.is_nan()) && lse[1].is_nan(), "{level:?} {format:?}");
    }
}
