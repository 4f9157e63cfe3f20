//! Each lane operation of each level against its plain meaning.

use super::*;
use crate::rows;

/// Checks the lane operations at every vector level of this CPU; also that the call returns.
struct Check;

fn values(seed: f32) -> [f32; 16] {
    std::array::from_fn(|i| (i as f32 * 1.7 + seed).sin() * 40.0)
}

fn taken<S: Simd>(s: S, v: S::F) -> [f32; 16] {
    let mut out = [0.0; 16];
    s.store(v, &mut out);
    out
}

#[track_caller]
fn lanes<S: Simd>(s: S, have: S::F, want: impl Fn(usize) -> f32) {
    let have = taken(s, have).map(f32::to_bits);
    assert_eq!(have, std::array::from_fn(|i| want(i).to_bits()));
}

impl Kernel for Check {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        floats(s);
        integers(s);
        pairs::<S, 2>(s);
        pairs::<S, 4>(s);
        exponentials(s);
        transposes(s);
        #[cfg(target_arch = "x86_64")]
        if let Some(tiles) = s.tiles() {
            digits(tiles);
            sums_of_short(tiles);
            sums_of_long::<true>(tiles);
            sums_of_long::<false>(tiles);
        }
    }
}

fn floats<S: Simd>(s: S) {
    let (a, b, c) = (values(0.1), values(0.7), values(1.9));
    let (va, vb, vc) = (s.load(&a), s.load(&b), s.load(&c));
    lanes(s, s.splat(3.5), |_| 3.5);
    lanes(s, s.add(va, vb), |i| a[i] + b[i]);
    lanes(s, s.sub(va, vb), |i| a[i] - b[i]);
    lanes(s, s.mul(va, vb), |i| a[i] * b[i]);
    lanes(s, s.div(va, vb), |i| a[i] / b[i]);
    lanes(s, s.fma(va, vb, vc), |i| a[i].mul_add(b[i], c[i]));
    lanes(s, s.larger(va, vb), |i| rows::larger(a[i], b[i]));
    lanes(s, s.keep(0xa5c3, va, vb), |i| if 0xa5c3 >> i & 1 == 1 { a[i] } else { b[i] });
    lanes(s, s.where_less(va, vb, vc, va), |i| if a[i] < b[i] { c[i] } else { a[i] });
    assert_eq!(s.tree_sum(va).to_bits(), rows::tree_sum(a).to_bits());
    assert_eq!(s.tree_largest(va), a.iter().copied().fold(f32::MIN, f32::max));
    let mut line = [0; 64];
    for (bytes, v) in line.as_chunks_mut::<4>().0.iter_mut().zip(a) {
        *bytes = v.to_ne_bytes();
    }
    lanes(s, s.load_line(&Line(line)), |i| a[i]);
}

fn integers<S: Simd>(s: S) {
    // Extremes are included: a file may hold -128, though no quantizer writes it.
    let signed: [u8; 64] = std::array::from_fn(|i| [0x80, 0x7f, 0, 0xff, (i * 37) as u8][i % 5]);
    let small: [u8; 64] = std::array::from_fn(|i| [127, 0, (2 * i) as u8][i % 3]);
    for x in [[127i8; 4], [-127; 4], [127, -127, 3, -90], [0, 1, -1, 77]] {
        let packed = i32::from_le_bytes(x.map(|v| v as u8));
        let dot = |row: usize, weight: &dyn Fn(usize) -> i32| -> f32 {
            (0..4).map(|j| weight(4 * row + j) * i32::from(x[j])).sum::<i32>() as f32
        };
        let packed = s.splat_int(packed);
        let acc = s.dot_small(s.splat_int(-7), s.load_units(&Line(small)), packed);
        lanes(s, s.to_float(acc), |i| dot(i, &|at| i32::from(small[at])) - 7.0);
        let raised = if S::RAISES_SIGNED { signed.map(|b| b ^ 0x80) } else { signed };
        let bias = if S::RAISES_SIGNED { -128 * x.iter().map(|&v| i32::from(v)).sum::<i32>() } else { 0 };
        let acc = s.dot_signed(s.splat_int(bias), s.load_units(&Line(raised)), packed);
        lanes(s, s.to_float(acc), |i| dot(i, &|at| i32::from(signed[at] as i8)));
        let scales = [-128i8, 127, -1, 90];
        let spread = s.spread::<2, 0, 3, 1>(u32::from_le_bytes(scales.map(|v| v as u8)));
        let scale = |lane: usize| i32::from(scales[[2, 0, 3, 1][lane / 4]]);
        lanes(s, s.to_float(s.low_word(spread)), |i| scale(i) as f32);
        let acc = s.dot_scaled(s.splat_int(5), s.load_units(&Line(small)), packed, spread);
        lanes(s, s.to_float(acc), |i| dot(i, &|at| i32::from(small[at]) * scale(i)) + 5.0);
    }
    words(s, &signed);
}

/// Checks the products of pairs of activation rows with eight steps of signed weights.
fn pairs<S: Simd, const T: usize>(s: S) {
    let weights: [[u8; 64]; 8] =
        std::array::from_fn(|k| std::array::from_fn(|i| [0x80, (k * 64 + i * 13) as u8, 0x7f][(k + i) % 3]));
    let raise = if S::RAISES_SIGNED { 0x80 } else { 0 };
    let lines = weights.map(|line| Line(line.map(|b| b ^ raise)));
    let x: [[i8; 32]; T] = std::array::from_fn(|t| {
        std::array::from_fn(|c| [127, -127, (c * 7 + t * 41) as i8 / 2][(c + t) % 3])
    });
    let bytes = x.map(|row| row.map(|v| v as u8));
    let mut start = [s.splat_int(0); T];
    for (t, start) in start.iter_mut().enumerate() {
        *start = s.splat_int(t as i32 - 9);
    }
    let dots = s.dot_pairs(start, &lines, bytes.each_ref().map(<[u8; 32]>::as_slice));
    for (t, dot) in dots.into_iter().enumerate() {
        let weight = |i: usize, c: usize| i32::from(weights[c / 4][4 * i + c % 4] as i8) + i32::from(raise);
        let want = |i: usize| (0..32).map(|c| weight(i, c) * i32::from(x[t][c])).sum::<i32>() + t as i32 - 9;
        lanes(s, s.to_float(dot), |i| want(i) as f32);
    }
}

/// Checks integer lanes, sixteen-bit words and sums over lanes.
fn words<S: Simd>(s: S, bytes: &[u8; 64]) {
    let v = s.units(bytes);
    let byte = |i: usize| i32::from(bytes[i] as i8);
    let ones = s.splat_int(0x0001_0001);
    lanes(s, s.to_float(s.dot_words(s.splat_int(3), s.even_bytes(v), ones)), |i| {
        (byte(4 * i) + byte(4 * i + 2) + 3) as f32
    });
    lanes(s, s.to_float(s.dot_words(s.splat_int(0), s.odd_bytes(v), ones)), |i| {
        (byte(4 * i + 1) + byte(4 * i + 3)) as f32
    });
    lanes(s, s.to_float(s.byte::<0>(v)), |i| byte(4 * i) as f32);
    lanes(s, s.to_float(s.byte::<1>(v)), |i| byte(4 * i + 1) as f32);
    lanes(s, s.to_float(s.byte::<2>(v)), |i| byte(4 * i + 2) as f32);
    lanes(s, s.to_float(s.byte::<3>(v)), |i| byte(4 * i + 3) as f32);
    let small = s.even_bytes(v);
    let (low, two) = (s.low_word(small), s.splat_int(-2));
    lanes(s, s.to_float(s.mul_int(low, two)), |i| (-2 * byte(4 * i)) as f32);
    lanes(s, s.to_float(s.add_int(low, two)), |i| (byte(4 * i) - 2) as f32);
    lanes(s, s.to_float(s.shift_down::<3>(low)), |i| (byte(4 * i) >> 3) as f32);
    let values: [[i32; 16]; 16] =
        std::array::from_fn(|i| std::array::from_fn(|j| (i * i * 31 + j * 7) as i32 - 99));
    let mut rows = [s.splat_int(0); 16];
    for (row, values) in rows.iter_mut().zip(&values) {
        let mut bytes = [0; 64];
        for (to, value) in bytes.as_chunks_mut().0.iter_mut().zip(values) {
            *to = value.to_ne_bytes();
        }
        *row = s.units(&bytes);
    }
    lanes(s, s.to_float(s.reduce(rows)), |i| values[i].iter().sum::<i32>() as f32);
    let four = [rows[2], rows[5], rows[11], rows[3]];
    let of = |i: usize| &values[[2, 5, 11, 3][i % 4]][i / 4 * 4..i / 4 * 4 + 4];
    lanes(s, s.to_float(s.quarter_sums(four)), |i| of(i).iter().sum::<i32>() as f32);
    lanes(s, s.to_float(s.quarter_firsts(four)), |i| of(i)[0] as f32);
    for (j, column) in s.transpose_quarters(four).into_iter().enumerate() {
        lanes(s, s.to_float(column), |i| of(4 * j + i / 4)[i % 4] as f32);
    }
    let sixteen = bytes.first_chunk().unwrap();
    lanes(s, s.widen_bytes(sixteen), |i| byte(i) as f32);
    let line = [1.5f32; 16];
    lanes(s, s.floats_of(s.bits(s.load(&line))), |i| line[i]);
}

fn exponentials<S: Simd>(s: S) {
    for step in 0..2_000 {
        let x: [f32; 16] = std::array::from_fn(|i| (step * 16 + i) as f32 * 0.006 - 92.0);
        lanes(s, s.exp(s.load(&x)), |i| crate::exp(x[i]));
    }
    let mut ends = [0.0; 16];
    ends[..4].copy_from_slice(&[f32::NEG_INFINITY, f32::INFINITY, -0.0, f32::MAX]);
    lanes(s, s.exp(s.load(&ends)), |i| crate::exp(ends[i]));
    lanes(s, s.soft_cap(s.load(&ends), 50.0), |i| crate::exp::soft_cap(ends[i], 50.0));
}

fn transposes<S: Simd>(s: S) {
    let rows: [[u8; 64]; 16] = std::array::from_fn(|i| std::array::from_fn(|j| (i * 64 + j * 7) as u8));
    let to = stored(s, s.transpose(rows.map(|row| s.units(&row))));
    for (i, row) in rows.iter().enumerate() {
        for (j, to) in to.iter().enumerate() {
            assert_eq!(to.0[4 * i..4 * i + 4], row[4 * j..4 * j + 4], "row {i}, unit {j}");
        }
    }
    let fours: [[u8; 16]; 16] = rows.map(|row| *row.first_chunk().unwrap());
    for (j, column) in s.transpose_four(&fours).into_iter().enumerate() {
        assert_eq!(taken_bytes(s, column), to[j].0, "column {j} of four");
    }
    bytes(s, &rows);
}

fn stored<S: Simd>(s: S, units: [S::I; 16]) -> [Line; 16] {
    units.map(|v| {
        let mut to = Line([0; 64]);
        s.store_units(v, &mut to);
        to
    })
}

/// Returns the 64 bytes of sixteen units.
fn taken_bytes<S: Simd>(s: S, v: S::I) -> [u8; 64] {
    stored(s, [v; 16])[0].0
}

fn bytes<S: Simd>(s: S, rows: &[[u8; 64]; 16]) {
    let (low, high) = (rows[3].first_chunk().unwrap(), rows[9].first_chunk().unwrap());
    let joined = taken_bytes(s, s.joined(low, high));
    assert_eq!((&joined[..32], &joined[32..]), (&low[..], &high[..]));
    let places = [0, 6, 1, 15].map(|row: usize| rows[row].first_chunk::<16>().unwrap());
    let joined = taken_bytes(s, s.quarters(places));
    assert_eq!(joined.as_chunks::<16>().0, places.map(|place| *place));
    let v = s.units(&rows[7]);
    assert_eq!(taken_bytes(s, s.low_nibbles(v)), rows[7].map(|b| b & 15));
    assert_eq!(taken_bytes(s, s.high_nibbles(v)), rows[7].map(|b| b >> 4));
    assert_eq!(taken_bytes(s, s.two_bits::<0>(v)), rows[7].map(|b| (b & 3) << 4));
    assert_eq!(taken_bytes(s, s.two_bits::<2>(v)), rows[7].map(|b| (b >> 2 & 3) << 4));
    assert_eq!(taken_bytes(s, s.two_bits::<4>(v)), rows[7].map(|b| (b >> 4 & 3) << 4));
    assert_eq!(taken_bytes(s, s.two_bits::<6>(v)), rows[7].map(|b| (b >> 6) << 4));
    let or = s.or(v, s.units(&rows[8]));
    assert_eq!(taken_bytes(s, or), std::array::from_fn(|i| rows[7][i] | rows[8][i]));
    let [first, second] = s.bit_pairs(low).map(|v| taken_bytes(s, v));
    for i in 0..32 {
        let pair = |p: u32| (low[i] >> (2 * p) & 3) << 4;
        assert_eq!(
            (first[i], first[32 + i], second[i], second[32 + i]),
            (pair(0), pair(1), pair(2), pair(3))
        );
    }
    let (a, b) = (rows[2].first_chunk::<16>().unwrap(), rows[4].first_chunk::<16>().unwrap());
    let nibbles = taken_bytes(s, s.nibble_pair(a, b));
    for i in 0..16 {
        let four = (nibbles[i], nibbles[16 + i], nibbles[32 + i], nibbles[48 + i]);
        assert_eq!(four, (a[i] & 15, a[i] >> 4, b[i] & 15, b[i] >> 4));
    }
    let table = std::array::from_fn(|i| (i * 37 + 200) as u8);
    let looked_up = taken_bytes(s, s.look_up(&table, s.nibble_pair(a, b)));
    assert_eq!(looked_up, nibbles.map(|nibble| table[usize::from(nibble)]));
    let mask = 0x8421_f00f_1234_5678_u64;
    let raised = taken_bytes(s, s.fifth_bits(s.units(&[3; 64]), mask));
    assert_eq!(raised, std::array::from_fn(|i| 3 + 16 * (mask >> i & 1) as u8));
    let heads = s.units(&rows[12]);
    let raised = taken_bytes(s, s.fifth_bits_of::<3>(s.units(&[3; 64]), heads));
    let bit = |i: usize| rows[12][i / 16 * 16 + 3 + i % 16 / 8] >> (i % 8) & 1;
    assert_eq!(raised, std::array::from_fn(|i| 3 + 16 * bit(i)));
    let raise = if S::RAISES_SIGNED { 0x80 } else { 0 };
    assert_eq!(taken_bytes(s, s.raised(s.units(&rows[5]))), rows[5].map(|b| b ^ raise));
    let v = values(0.4);
    assert_eq!(taken_bytes(s, s.bits(s.load(&v))).as_chunks::<4>().0, v.map(f32::to_ne_bytes));
    for first in (0..0x7c00u16).step_by(16).chain((0x8000..0xfc00).step_by(16)) {
        let halves: [u16; 16] = std::array::from_fn(|i| first + i as u16);
        lanes(s, s.widen(&halves), |i| crate::f16::f16_to_f32(halves[i]));
        let mut pairs = [0; 64];
        for (i, pair) in pairs.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            *pair = (u32::from(halves[i]) | u32::from(halves[15 - i]) << 16).to_le_bytes();
        }
        let pairs = s.units(&pairs);
        lanes(s, s.widen_low(pairs), |i| crate::f16::f16_to_f32(halves[i]));
        lanes(s, s.widen_high(pairs), |i| crate::f16::f16_to_f32(halves[15 - i]));
    }
}

/// Bytes of every value, with many extremes.
#[cfg(target_arch = "x86_64")]
fn line_of(seed: usize) -> Line {
    Line(std::array::from_fn(|i| [0x80, 0x7f, 0xff, (seed * 29 + i * 37) as u8][(i + seed * i / 3) % 4]))
}

#[cfg(target_arch = "x86_64")]
fn digits(tiles: amx::Tiles) {
    let small: [u8; 64] = std::array::from_fn(|i| [31, 0, (i % 32) as u8][i % 3]);
    for (scales, raise, is_signed) in [
        ([-128, 127, -1, 90], 128, true),
        ([-128, 127, 0, -77], 32, true),
        ([63, 0, 7, 8], 0, false),
        ([32, 31, 1, 45], 0, false),
    ] {
        let line = if is_signed { line_of(3) } else { Line(small) };
        for floats in [false, true] {
            let (mut lanes, mut low, mut high) = (Line([0; 64]), Line([0; 64]), Line([0; 64]));
            for (i, lane) in lanes.0.as_chunks_mut().0.iter_mut().enumerate() {
                let scale: i32 = scales[i % 4];
                *lane = if floats { (scale as f32).to_ne_bytes() } else { scale.to_ne_bytes() };
            }
            let lanes = tiles.scales(&lanes, floats);
            if is_signed {
                tiles.digits::<true>(&line, raise, lanes, &mut low, &mut high);
            } else {
                tiles.digits::<false>(&line, raise, lanes, &mut low, &mut high);
            }
            for i in 0..64 {
                let (weight, have) = if is_signed {
                    let digit = |line: &Line| i32::from(line.0[i] as i8);
                    (i32::from(line.0[i].wrapping_sub(raise) as i8), digit(&low) + 256 * digit(&high))
                } else {
                    (i32::from(line.0[i]), i32::from(low.0[i]) + 8 * i32::from(high.0[i]))
                };
                assert_eq!(have, weight * scales[i / 4 % 4], "byte {i} of {weight}, floats: {floats}");
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn lane(line: &Line, i: usize) -> i32 {
    i32::from_ne_bytes(line.0.as_chunks().0[i])
}

#[cfg(target_arch = "x86_64")]
fn sums_of_short(tiles: amx::Tiles) {
    let x: amx::ShortRows = std::array::from_fn(line_of);
    let w: [[Line; 8]; 2] = std::array::from_fn(|p| std::array::from_fn(|k| line_of(9 + 8 * p + k)));
    let mut sums: amx::ShortSums = [[Line([0xaa; 64]); _]; 2];
    let unit = tiles.load::<amx::OfShort>();
    for odd in [false, true] {
        unit.multiply(odd, &x, [&w[usize::from(odd)], &w[1]]);
    }
    unit.store(false, &mut sums);
    for (p, sums) in sums.iter().enumerate() {
        for (t, sums) in sums.iter().enumerate() {
            for i in 0..16 {
                let x = |c: usize| i32::from(x[t / 2].0[t % 2 * 32 + c] as i8);
                let w = |c: usize| i32::from(w[p][c / 4].0[4 * i + c % 4] as i8);
                let want: i32 = (0..32).map(|c| x(c) * w(c)).sum();
                assert_eq!(lane(sums, i) - amx::SUM_BITS, want, "panel {p}, token {t}, row {i}");
                assert_eq!(f32::from_bits(lane(sums, i) as u32) - amx::SUM_START, want as f32);
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn sums_of_long<const SIGNED: bool>(tiles: amx::Tiles) {
    let x: amx::LongRows = std::array::from_fn(|k| std::array::from_fn(|t| line_of(k * 32 + t)));
    let w: amx::Digits = std::array::from_fn(|k| {
        std::array::from_fn(|digit| std::array::from_fn(|line| line_of(200 + k * 32 + digit * 16 + line)))
    });
    for both in [true, false] {
        let mut sums: amx::LongSums = [[[Line([0xaa; 64]); 16]; 2]; 2];
        let unit = tiles.load::<amx::OfLong>();
        unit.clear();
        for (x, w) in x.iter().zip(&w) {
            unit.multiply::<SIGNED>(x, w, both);
        }
        unit.store(&mut sums);
        for (half, digit, t, i) in
            (0..2 * 2 * 16 * 16).map(|n: usize| (n / 512, n / 256 % 2, n / 16 % 16, n % 16))
        {
            let x = |c: usize| i32::from(x[c / 64][half * 16 + t].0[c % 64] as i8);
            let w = |c: usize| w[c / 64][digit][c % 64 / 4].0[4 * i + c % 4];
            let signed = |w: u8| if SIGNED { i32::from(w as i8) } else { i32::from(w) };
            let want: i32 = (0..256).map(|c| x(c) * signed(w(c))).sum();
            let want = if half == 0 || both { want } else { 0 };
            assert_eq!(
                lane(&sums[half][digit][t], i),
                want,
                "half {half}, digit {digit}, token {t}, row {i}"
            );
        }
    }
}

#[test]
fn operations_have_their_plain_meaning() {
    // `./x test arm64` reads this line: an emulated CPU must offer the level that it was chosen for.
    println!("best level: {}", Dispatch::best().name());
    for level in Dispatch::ALL {
        let ran = run(level, Check).is_ok();
        assert_eq!(ran, level != Dispatch::Scalar && level.is_available(), "{level:?}");
    }
}
