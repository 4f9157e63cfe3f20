//@ place
// A workgroup computes 64 rows of 32 tokens. A thread has four rows, sixteen apart, and four tokens, eight
// apart, so that neighbouring threads read and write neighbouring places. Its sums are a vector over tokens
// for each row.
const ROWS = 64u;
const TOKENS = 32u;
const ROW_STEP = 16u;
const TOKEN_STEP = 8u;

fn row_of(i: u32) -> u32 {
    return min(i, params.rows - 1u);
}

fn token_of(i: u32) -> u32 {
    return min(i, params.t - 1u);
}

fn put_one(row: u32, token: u32, sum: f32) {
    if row < params.rows && token < params.t {
        out[token * params.stride + params.row_first + row] = sum;
    }
}

fn put(row: u32, token: u32, sums: vec4<f32>) {
    put_one(row, token, sums.x);
    put_one(row, token + TOKEN_STEP, sums.y);
    put_one(row, token + 2u * TOKEN_STEP, sums.z);
    put_one(row, token + 3u * TOKEN_STEP, sums.w);
}

fn put_all(row: u32, token: u32, a: vec4<f32>, b: vec4<f32>, c: vec4<f32>, d: vec4<f32>) {
    put(row, token, a);
    put(row + ROW_STEP, token, b);
    put(row + 2u * ROW_STEP, token, c);
    put(row + 3u * ROW_STEP, token, d);
}

//@ blocks
// 64 columns: four groups of sixteen for each row and each token.
var<workgroup> weight_words: array<vec4<u32>, 4u * ROWS>;
var<workgroup> token_words: array<vec4<u32>, 4u * TOKENS>;
// The sums of the groups of activations.
var<workgroup> token_sums: array<i32, SUMS_LEN>;

fn store_weights(part: Part, half: u32, row: u32) {
    weight_words[2u * half * ROWS + row] = part.low;
    weight_words[(2u * half + 1u) * ROWS + row] = part.high;
}

// Brings group `thread % 4` of a token.
fn store_token(thread: u32, first_token: u32, first_part: u32, parts: u32) {
    let g = thread % 4u;
    let token = thread / 4u;
    if first_part + g / 2u < parts {
        let source = 2u * (token_of(first_token + token) * parts + first_part) + g;
        token_words[g * TOKENS + token] = q[source];
        if HAS_MINIMA {
            token_sums[g * TOKENS + token] = sums[source];
        }
    }
}

struct Dots {
    a: vec4<i32>,
    b: vec4<i32>,
    c: vec4<i32>,
    d: vec4<i32>,
}

// The products of a group of four rows and four tokens.
fn dots_of(g: u32, row: u32, token: u32) -> Dots {
    let w_at = g * ROWS + row;
    let x_at = g * TOKENS + token;
    let a = weight_words[w_at];
    let b = weight_words[w_at + ROW_STEP];
    let c = weight_words[w_at + 2u * ROW_STEP];
    let d = weight_words[w_at + 3u * ROW_STEP];
    let x = token_words[x_at];
    let y = token_words[x_at + TOKEN_STEP];
    let z = token_words[x_at + 2u * TOKEN_STEP];
    let v = token_words[x_at + 3u * TOKEN_STEP];
    return Dots(
        vec4<i32>(dot_16(a, x), dot_16(a, y), dot_16(a, z), dot_16(a, v)),
        vec4<i32>(dot_16(b, x), dot_16(b, y), dot_16(b, z), dot_16(b, v)),
        vec4<i32>(dot_16(c, x), dot_16(c, y), dot_16(c, z), dot_16(c, v)),
        vec4<i32>(dot_16(d, x), dot_16(d, y), dot_16(d, z), dot_16(d, v)),
    );
}

fn sums_of(g: u32, token: u32) -> vec4<i32> {
    let at = g * TOKENS + token;
    return vec4<i32>(
        token_sums[at],
        token_sums[at + TOKEN_STEP],
        token_sums[at + 2u * TOKEN_STEP],
        token_sums[at + 3u * TOKEN_STEP],
    );
}

// The scales of four tokens in block `b`.
fn token_scales(token: u32, b: u32, blocks: u32) -> vec4<f32> {
    return vec4<f32>(
        scale[token_of(token) * blocks + b],
        scale[token_of(token + TOKEN_STEP) * blocks + b],
        scale[token_of(token + 2u * TOKEN_STEP) * blocks + b],
        scale[token_of(token + 3u * TOKEN_STEP) * blocks + b],
    );
}

//@ short
var<workgroup> row_units: array<vec2<f32>, 2u * ROWS>;

fn block_sum(sum: vec4<f32>, dot: vec4<i32>, unit: vec2<f32>, offset: vec4<i32>, dx: vec4<f32>) -> vec4<f32> {
    var z = vec4<f32>(dot) * unit.x;
    if HAS_MINIMA {
        z = fused_4(vec4<f32>(offset), vec4<f32>(unit.y), z);
    }
    return fused_4(z, dx, sum);
}

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let first_row = group.y * ROWS;
    let first_token = group.x * TOKENS;
    let blocks = params.cols / 32u;
    let row = thread % ROW_STEP;
    let token = thread / ROW_STEP;
    var a = vec4<f32>(0.0);
    var b = vec4<f32>(0.0);
    var c = vec4<f32>(0.0);
    var d = vec4<f32>(0.0);
    for (var first = 0u; first < blocks; first += 2u) {
        let half = thread / ROWS;
        if first + half < blocks {
            let at = (row_of(first_row + thread % ROWS) * blocks + first + half) * BLOCK_BYTES;
            store_weights(part_at(at), half, thread % ROWS);
            row_units[thread] = unit_at(at);
        }
        store_token(thread, first_token, first, blocks);
        workgroupBarrier();
        for (var i = 0u; i < min(2u, blocks - first); i++) {
            let low = dots_of(2u * i, row, token);
            let high = dots_of(2u * i + 1u, row, token);
            let dx = token_scales(first_token + token, first + i, blocks);
            var offset = vec4<i32>(0);
            if HAS_MINIMA {
                offset = sums_of(2u * i, token) + sums_of(2u * i + 1u, token);
            }
            let unit = i * ROWS + row;
            a = block_sum(a, low.a + high.a, row_units[unit], offset, dx);
            b = block_sum(b, low.b + high.b, row_units[unit + ROW_STEP], offset, dx);
            c = block_sum(c, low.c + high.c, row_units[unit + 2u * ROW_STEP], offset, dx);
            d = block_sum(d, low.d + high.d, row_units[unit + 3u * ROW_STEP], offset, dx);
        }
        workgroupBarrier();
    }
    put_all(first_row + row, first_token + token, a, b, c, d);
}

//@ long
// Scales and minima of the two groups of each part.
var<workgroup> row_scales: array<vec2<i32>, 2u * ROWS>;
var<workgroup> row_minima: array<vec2<i32>, MINIMA_LEN>;

fn block_sum(
    sum: vec4<f32>,
    dot: vec4<i32>,
    offset: vec4<i32>,
    row: u32,
    b: u32,
    dx: vec4<f32>,
) -> vec4<f32> {
    let units = units_at((row_of(row) * (params.cols / 256u) + b) * BLOCK_BYTES);
    var z = vec4<f32>(dot) * units.x;
    if HAS_MINIMA {
        z = fused_4(vec4<f32>(offset), vec4<f32>(units.y), z);
    }
    return fused_4(z, dx, sum);
}

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let first_row = group.y * ROWS;
    let first_token = group.x * TOKENS;
    let parts = params.cols / 32u;
    let row = thread % ROW_STEP;
    let token = thread / ROW_STEP;
    var a = vec4<f32>(0.0);
    var b = vec4<f32>(0.0);
    var c = vec4<f32>(0.0);
    var d = vec4<f32>(0.0);
    var dots = Dots(vec4<i32>(0), vec4<i32>(0), vec4<i32>(0), vec4<i32>(0));
    var offsets = Dots(vec4<i32>(0), vec4<i32>(0), vec4<i32>(0), vec4<i32>(0));
    for (var first = 0u; first < parts; first += 2u) {
        let half = thread / ROWS;
        let p = first + half;
        let at = (row_of(first_row + thread % ROWS) * (parts / 8u) + p / 8u) * BLOCK_BYTES;
        store_weights(part_at(at, p % 8u), half, thread % ROWS);
        row_scales[thread] = scales_at(at, p % 8u);
        if HAS_MINIMA {
            row_minima[thread] = minima_at(at, p % 8u);
        }
        store_token(thread, first_token, first, parts);
        workgroupBarrier();
        for (var i = 0u; i < 2u; i++) {
            let low = dots_of(2u * i, row, token);
            let high = dots_of(2u * i + 1u, row, token);
            let s = i * ROWS + row;
            dots.a += row_scales[s].x * low.a + row_scales[s].y * high.a;
            dots.b += row_scales[s + ROW_STEP].x * low.b + row_scales[s + ROW_STEP].y * high.b;
            dots.c += row_scales[s + 2u * ROW_STEP].x * low.c + row_scales[s + 2u * ROW_STEP].y * high.c;
            dots.d += row_scales[s + 3u * ROW_STEP].x * low.d + row_scales[s + 3u * ROW_STEP].y * high.d;
            if HAS_MINIMA {
                let x = sums_of(2u * i, token);
                let y = sums_of(2u * i + 1u, token);
                offsets.a += row_minima[s].x * x + row_minima[s].y * y;
                offsets.b += row_minima[s + ROW_STEP].x * x + row_minima[s + ROW_STEP].y * y;
                offsets.c += row_minima[s + 2u * ROW_STEP].x * x + row_minima[s + 2u * ROW_STEP].y * y;
                offsets.d += row_minima[s + 3u * ROW_STEP].x * x + row_minima[s + 3u * ROW_STEP].y * y;
            }
        }
        if first % 8u == 6u {
            let block = first / 8u;
            let dx = token_scales(first_token + token, block, parts / 8u);
            a = block_sum(a, dots.a, offsets.a, first_row + row, block, dx);
            b = block_sum(b, dots.b, offsets.b, first_row + row + ROW_STEP, block, dx);
            c = block_sum(c, dots.c, offsets.c, first_row + row + 2u * ROW_STEP, block, dx);
            d = block_sum(d, dots.d, offsets.d, first_row + row + 3u * ROW_STEP, block, dx);
            dots = Dots(vec4<i32>(0), vec4<i32>(0), vec4<i32>(0), vec4<i32>(0));
            offsets = Dots(vec4<i32>(0), vec4<i32>(0), vec4<i32>(0), vec4<i32>(0));
        }
        workgroupBarrier();
    }
    put_all(first_row + row, first_token + token, a, b, c, d);
}

//@ float
// Rows are padded by one number, so that threads that read neighbouring columns write different banks.
var<workgroup> weights: array<f32, 32u * (ROWS + 1u)>;
var<workgroup> numbers: array<f32, 32u * (TOKENS + 1u)>;

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let first_row = group.y * ROWS;
    let first_token = group.x * TOKENS;
    let row = thread % ROW_STEP;
    let token = thread / ROW_STEP;
    var a = vec4<f32>(0.0);
    var b = vec4<f32>(0.0);
    var c = vec4<f32>(0.0);
    var d = vec4<f32>(0.0);
    for (var first = 0u; first < params.cols; first += 32u) {
        // Columns past the end count nothing.
        let col = first + thread % 32u;
        for (var r = thread / 32u; r < ROWS; r += 4u) {
            var weight = 0.0;
            if col < params.cols {
                weight = weight_at(row_of(first_row + r) * params.cols + col);
            }
            weights[thread % 32u * (ROWS + 1u) + r] = weight;
        }
        for (var t = thread / 32u; t < TOKENS; t += 4u) {
            var number = 0.0;
            if col < params.cols {
                number = x[token_of(first_token + t) * params.cols + col];
            }
            numbers[thread % 32u * (TOKENS + 1u) + t] = number;
        }
        workgroupBarrier();
        var p = vec4<f32>(0.0);
        var q = vec4<f32>(0.0);
        var r = vec4<f32>(0.0);
        var s = vec4<f32>(0.0);
        for (var k = 0u; k < 32u; k++) {
            let w_at = k * (ROWS + 1u) + row;
            let x_at = k * (TOKENS + 1u) + token;
            let of_tokens = vec4<f32>(
                numbers[x_at],
                numbers[x_at + TOKEN_STEP],
                numbers[x_at + 2u * TOKEN_STEP],
                numbers[x_at + 3u * TOKEN_STEP],
            );
            p = fused_4(vec4<f32>(weights[w_at]), of_tokens, p);
            q = fused_4(vec4<f32>(weights[w_at + ROW_STEP]), of_tokens, q);
            r = fused_4(vec4<f32>(weights[w_at + 2u * ROW_STEP]), of_tokens, r);
            s = fused_4(vec4<f32>(weights[w_at + 3u * ROW_STEP]), of_tokens, s);
        }
        a += p;
        b += q;
        c += r;
        d += s;
        workgroupBarrier();
    }
    put_all(first_row + row, first_token + token, a, b, c, d);
}
