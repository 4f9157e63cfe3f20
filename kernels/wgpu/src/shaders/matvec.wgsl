//@ place
// A workgroup has ROWS rows of 32 threads each. The threads of a row share its blocks; then one thread for
// each row and token adds their products in order. Which matrix and tokens a workgroup takes follows from its
// place in z.
const ROWS = 4u;
const THREADS = 128u;

//@ whole
// The matrix begins at the first byte.
fn matrix_at(z: u32) -> u32 {
    return 0u;
}

fn has_matrix(z: u32) -> bool {
    return true;
}

fn first_token_of(z: u32) -> u32 {
    return z * TOKENS;
}

// The tokens past the last one count nothing.
fn token_at(first: u32, t: u32) -> u32 {
    return min(first + t, params.t - 1u);
}

fn put(thread: u32, first_row: u32, z: u32, sum: f32) {
    let row = first_row + thread / TOKENS;
    let token = z * TOKENS + thread % TOKENS;
    if thread < ROWS * TOKENS && row < params.rows && token < params.t {
        out[token * params.stride + params.row_first + row] = sum;
    }
}

//@ chosen
// The number of the pair's matrix among those of the buffer.
fn matrix_of(z: u32) -> u32 {
    return routes[2u * z] * params.each + params.matrix_in_expert - params.first;
}

fn matrix_at(z: u32) -> u32 {
    return matrix_of(z) * params.stride * 4u;
}

fn has_matrix(z: u32) -> bool {
    return z < params.pairs && matrix_of(z) < params.held;
}

fn first_token_of(z: u32) -> u32 {
    return z / params.used;
}

// There is one token.
fn token_at(first: u32, t: u32) -> u32 {
    return first;
}

fn put(thread: u32, first_row: u32, z: u32, sum: f32) {
    let row = first_row + thread;
    if thread < ROWS && row < params.rows {
        out[z * params.rows + row] = sum;
    }
}

//@ chain
// Adds products from `at` on, times the scales from `x` on, in order. Four are brought at a time, so that the
// sum waits for memory a quarter as often.
fn chain(first: f32, at: u32, x: u32, count: u32) -> f32 {
    var sum = first;
    var b = 0u;
    for (; b + 4u <= count; b += 4u) {
        let i = at + b;
        let j = x + b;
        let z = vec4<f32>(products[i], products[i + 1u], products[i + 2u], products[i + 3u]);
        let dx = vec4<f32>(scale[j], scale[j + 1u], scale[j + 2u], scale[j + 3u]);
        sum = fused(z.x, dx.x, sum);
        sum = fused(z.y, dx.y, sum);
        sum = fused(z.z, dx.z, sum);
        sum = fused(z.w, dx.w, sum);
    }
    for (; b < count; b++) {
        sum = fused(products[at + b], scale[x + b], sum);
    }
    return sum;
}

//@ short
// `z` of each block of a chunk, for each row and token.
var<workgroup> products: array<f32, ROWS * TOKENS * (PARTS + 1u)>;

@compute @workgroup_size(128)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    if !has_matrix(group.z) {
        return;
    }
    let start = matrix_at(group.z);
    let first_row = (group.y * groups.x + group.x) * ROWS;
    let first_token = first_token_of(group.z);
    let blocks = params.cols / 32u;
    let my_row = thread / 32u;
    let row = first_row + my_row;
    var sum = 0.0;
    for (var first = 0u; first < blocks; first += PARTS) {
        let end = min(first + PARTS, blocks);
        if row < params.rows {
            for (var b = first + thread % 32u; b < end; b += 32u) {
                let at = start + (row * blocks + b) * BLOCK_BYTES;
                let part = part_at(at);
                let unit = unit_at(at);
                for (var t = 0u; t < TOKENS; t++) {
                    let x = token_at(first_token, t) * blocks + b;
                    let dot = dot_16(part.low, q[2u * x]) + dot_16(part.high, q[2u * x + 1u]);
                    var z = f32(dot) * unit.x;
                    if HAS_MINIMA {
                        z = fused(f32(sums[2u * x] + sums[2u * x + 1u]), unit.y, z);
                    }
                    products[(my_row * TOKENS + t) * (PARTS + 1u) + b - first] = z;
                }
            }
        }
        workgroupBarrier();
        if thread < ROWS * TOKENS {
            let x = token_at(first_token, thread % TOKENS) * blocks + first;
            sum = chain(sum, thread * (PARTS + 1u), x, end - first);
        }
        workgroupBarrier();
    }
    put(thread, first_row, group.z, sum);
}

//@ long
// The integer sums of each part of 32 weights of a chunk, for each row and token, and `z` of its
// super-blocks.
var<workgroup> dots: array<i32, ROWS * TOKENS * (PARTS + 1u)>;
var<workgroup> offsets: array<i32, MINIMA_LEN>;
var<workgroup> products: array<f32, ROWS * TOKENS * PARTS / 8u>;

@compute @workgroup_size(128)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    if !has_matrix(group.z) {
        return;
    }
    let start = matrix_at(group.z);
    let first_row = (group.y * groups.x + group.x) * ROWS;
    let first_token = first_token_of(group.z);
    let parts = params.cols / 32u;
    let blocks = parts / 8u;
    let my_row = thread / 32u;
    let row = first_row + my_row;
    var sum = 0.0;
    for (var first = 0u; first < parts; first += PARTS) {
        let end = min(first + PARTS, parts);
        if row < params.rows {
            for (var p = first + thread % 32u; p < end; p += 32u) {
                let at = start + (row * blocks + p / 8u) * BLOCK_BYTES;
                let part = part_at(at, p % 8u);
                let scales = scales_at(at, p % 8u);
                let minima = minima_at(at, p % 8u);
                for (var t = 0u; t < TOKENS; t++) {
                    let x = 2u * (token_at(first_token, t) * parts + p);
                    let to = (my_row * TOKENS + t) * (PARTS + 1u) + p - first;
                    dots[to] = scales.x * dot_16(part.low, q[x]) + scales.y * dot_16(part.high, q[x + 1u]);
                    if HAS_MINIMA {
                        offsets[to] = minima.x * sums[x] + minima.y * sums[x + 1u];
                    }
                }
            }
        }
        workgroupBarrier();
        let chunk_blocks = (end - first) / 8u;
        for (var i = thread; i < ROWS * TOKENS * chunk_blocks; i += THREADS) {
            let pair = i / chunk_blocks;
            let b = i % chunk_blocks;
            let source = pair * (PARTS + 1u) + 8u * b;
            var dot = 0;
            for (var j = 0u; j < 8u; j++) {
                dot += dots[source + j];
            }
            let of_row = min(first_row + pair / TOKENS, params.rows - 1u);
            let units = units_at(start + (of_row * blocks + first / 8u + b) * BLOCK_BYTES);
            var z = f32(dot) * units.x;
            if HAS_MINIMA {
                var offset = 0;
                for (var j = 0u; j < 8u; j++) {
                    offset += offsets[source + j];
                }
                z = fused(f32(offset), units.y, z);
            }
            products[pair * (PARTS / 8u) + b] = z;
        }
        workgroupBarrier();
        if thread < ROWS * TOKENS {
            let x = token_at(first_token, thread % TOKENS) * blocks + first / 8u;
            sum = chain(sum, thread * (PARTS / 8u), x, chunk_blocks);
        }
    }
    put(thread, first_row, group.z, sum);
}

//@ float
// Weights and numbers of a chunk of columns, and the sums of each 32 of them. Rows are padded by one number
// for each 32, so that threads that read 32 apart read different banks.
const PADDED = CHUNK + CHUNK / 32u;
const BLOCKS = CHUNK / 32u;

var<workgroup> weights: array<f32, ROWS * PADDED>;
var<workgroup> numbers: array<f32, TOKENS * PADDED>;
var<workgroup> block_sums: array<f32, ROWS * TOKENS * BLOCKS>;

@compute @workgroup_size(128)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    if !has_matrix(group.z) {
        return;
    }
    let start = matrix_at(group.z);
    let first_row = (group.y * groups.x + group.x) * ROWS;
    let first_token = first_token_of(group.z);
    var sum = 0.0;
    for (var first = 0u; first < params.cols; first += CHUNK) {
        let count = min(CHUNK, params.cols - first);
        for (var r = 0u; r < ROWS; r++) {
            let of_row = start / NUMBER_BYTES + min(first_row + r, params.rows - 1u) * params.cols + first;
            for (var i = thread; i < count; i += THREADS) {
                weights[r * PADDED + i + i / 32u] = weight_at(of_row + i);
            }
        }
        for (var t = 0u; t < TOKENS; t++) {
            let of_token = token_at(first_token, t) * params.cols + first;
            for (var i = thread; i < count; i += THREADS) {
                numbers[t * PADDED + i + i / 32u] = x[of_token + i];
            }
        }
        workgroupBarrier();
        let chunk_blocks = (count + 31u) / 32u;
        for (var i = thread; i < ROWS * TOKENS * chunk_blocks; i += THREADS) {
            let pair = i / chunk_blocks;
            let b = i % chunk_blocks;
            let of_weights = pair / TOKENS * PADDED + 33u * b;
            let of_numbers = pair % TOKENS * PADDED + 33u * b;
            let width = min(32u, count - 32u * b);
            var s = 0.0;
            for (var c = 0u; c < width; c++) {
                s = fused(weights[of_weights + c], numbers[of_numbers + c], s);
            }
            block_sums[pair * BLOCKS + b] = s;
        }
        workgroupBarrier();
        if thread < ROWS * TOKENS {
            for (var b = 0u; b < chunk_blocks; b++) {
                sum += block_sums[thread * BLOCKS + b];
            }
        }
    }
    put(thread, first_row, group.z, sum);
}
