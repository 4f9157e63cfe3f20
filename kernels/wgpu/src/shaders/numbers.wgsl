//@ main
@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let i = (group.y * groups.x + group.x) * 256u + thread;
    if i < params.n {
        apply(i);
    }
}

//@ scale
fn apply(i: u32) {
    x[i] = x[i] * params.a;
}

//@ soft_cap
fn apply(i: u32) {
    x[i] = soft_cap(x[i], params.a);
}

//@ sigmoid
fn apply(i: u32) {
    x[i] = 1.0 / (1.0 + exponential(-x[i]));
}

//@ add
fn apply(i: u32) {
    x[i] = x[i] + y[i];
}

//@ swiglu
fn apply(i: u32) {
    let gate = x[i];
    x[i] = gate / (1.0 + exponential(-gate)) * y[i];
}

//@ geglu
fn apply(i: u32) {
    let gate = x[i];
    let slope = 1.0 + rounded(0.044715 * gate * gate);
    let twice_u = 1.595769 * gate * slope;
    x[i] = gate / (1.0 + exponential(-twice_u)) * y[i];
}

//@ swiglu_clamped
fn apply(i: u32) {
    let gate = select(x[i], 7.0, x[i] > 7.0);
    let high = select(y[i], 7.0, y[i] > 7.0);
    let up = select(high, -7.0, high < -7.0);
    x[i] = gate / (1.0 + exponential(-1.702 * gate)) * (up + 1.0);
}

//@ gate_by_sigmoid
fn apply(i: u32) {
    x[i] = x[i] * (1.0 / (1.0 + exponential(-y[i])));
}

//@ add_bias
fn apply(i: u32) {
    x[i] = x[i] + bias[i % params.width];
}

//@ scale_rows
fn apply(i: u32) {
    x[i] = x[i] * factors[i / params.width];
}

//@ copy
fn apply(i: u32) {
    let g = i / params.len;
    let j = i % params.len;
    out[g * params.to_each + params.to_at + j] = x[g * params.from_each + params.from_at + j];
}

//@ gather
fn apply(i: u32) {
    let row = i / params.width;
    out[i] = x[rows[row] * params.width + i % params.width];
}

//@ add_scaled
fn apply(i: u32) {
    let row = i / params.width;
    let at = rows[row] * params.width + i % params.width;
    x[at] = x[at] + rounded(factors[row] * y[i]);
}

//@ add_chosen_bias
fn apply(i: u32) {
    x[i] = x[i] + bias[routes[2u * (i / params.width)] * params.width + i % params.width];
}

//@ add_chosen
fn apply(i: u32) {
    let first = i / params.width * params.used;
    var sum = x[i];
    for (var pair = first; pair < first + params.used; pair++) {
        let factor = bitcast<f32>(routes[2u * pair + 1u]);
        sum = sum + rounded(factor * y[pair * params.width + i % params.width]);
    }
    x[i] = sum;
}

//@ rope
fn rotate(i: u32, low: u32, high: u32) {
    let at = i / (params.heads * params.half) * params.half + i % params.half;
    let a = x[low];
    let b = x[high];
    x[low] = rounded(a * cos_of[at]) - rounded(b * sin_of[at]);
    x[high] = rounded(a * sin_of[at]) + rounded(b * cos_of[at]);
}

//@ rope_adjacent
fn apply(i: u32) {
    let low = i / params.half * params.d + 2u * (i % params.half);
    rotate(i, low, low + 1u);
}

//@ rope_halves
fn apply(i: u32) {
    let low = i / params.half * params.d + i % params.half;
    rotate(i, low, low + params.half);
}

//@ half
// The bits of the nearest binary16, ties to even, as kernels/cpu finds them.
fn to_half(value: f32) -> u32 {
    let bits = bitcast<u32>(value);
    let magnitude = bits & 0x7fffffffu;
    let small = bitcast<f32>(min(magnitude, 0x38800000u)) + 0.5;
    let subnormal = bitcast<u32>(small) - 0x3f000000u;
    let normal = (magnitude + 0xfffu + ((magnitude >> 13u) & 1u) - (112u << 23u)) >> 13u;
    let special = select(0x7c00u, 0x7e00u, magnitude > 0x7f800000u);
    let finite = select(normal, subnormal, magnitude < 0x38800000u);
    return select(finite, special, magnitude >= 0x47800000u) | ((bits >> 16u) & 0x8000u);
}

//@ append
fn apply(i: u32) {
    let pairs = params.d / 2u;
    let pair = i % pairs;
    let head = i / pairs % params.heads;
    let place = 2u * (i / (pairs * params.heads));
    let slot = places[place + 1u];
    let source = (places[place] * params.heads + head) * params.d + 2u * pair;
    let place_of_head = slot / 32u * params.heads + head;
    let key = to_half(k[source]) | (to_half(k[source + 1u]) << 16u);
    let value = to_half(v[source]) | (to_half(v[source + 1u]) << 16u);
    keys[(place_of_head * pairs + pair) * 32u + slot % 32u] = key;
    values[(place_of_head * 32u + slot % 32u) * pairs + pair] = value;
}

//@ keep
fn apply(i: u32) {
    let pairs = params.d / 2u;
    let pair = i % pairs;
    let move_at = 3u * (i / pairs);
    let head = moves[move_at];
    let source = moves[move_at + 1u];
    let to = moves[move_at + 2u];
    let old = source / 32u * params.heads + head;
    let new_place = to / 32u * params.heads + head;
    keys[(new_place * pairs + pair) * 32u + to % 32u] = keys[(old * pairs + pair) * 32u + source % 32u];
    values[(new_place * 32u + to % 32u) * pairs + pair] = values[(old * 32u + source % 32u) * pairs + pair];
}
