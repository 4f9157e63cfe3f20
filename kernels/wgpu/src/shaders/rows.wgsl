//@ norm
// Sums run in sixteen lanes: number i in lane i % 16. All threads bring the numbers near, sixteen add.
const THREADS = 128u;
const CHUNK = 2048u;

var<workgroup> near: array<f32, CHUNK>;
var<workgroup> lanes: array<f32, 16>;
var<workgroup> inverse: f32;

@compute @workgroup_size(128)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let vector = group.y * groups.x + group.x;
    if vector >= params.n {
        return;
    }
    let start = vector * params.width;
    var lane = 0.0;
    for (var first = 0u; first < params.width; first += CHUNK) {
        let count = min(CHUNK, params.width - first);
        for (var i = thread; i < count; i += THREADS) {
            near[i] = x[start + first + i];
        }
        workgroupBarrier();
        if thread < 16u {
            for (var i = thread; i < count; i += 16u) {
                lane = fused(near[i], near[i], lane);
            }
        }
        workgroupBarrier();
    }
    if thread < 16u {
        lanes[thread] = lane;
    }
    workgroupBarrier();
    if thread == 0u {
        var four: array<f32, 4>;
        for (var i = 0u; i < 4u; i++) {
            four[i] = (lanes[i] + lanes[i + 8u]) + (lanes[i + 4u] + lanes[i + 12u]);
        }
        let sum = (four[0] + four[2]) + (four[1] + four[3]);
        let square = sum / f32(params.width) + params.eps;
        let is_finite = (bitcast<u32>(square) & 0x7f800000u) != 0x7f800000u;
        inverse = select(nan(), 1.0 / sqrt(square), is_finite);
    }
    workgroupBarrier();
    for (var i = thread; i < params.width; i += THREADS) {
        put(start + i, x[start + i] * inverse * weight[i]);
    }
}

//@ norm_to
fn put(i: u32, value: f32) {
    out[i] = value;
}

//@ norm_in_place
fn put(i: u32, value: f32) {
    x[i] = value;
}

//@ best
// The place of a row's greatest number, and of its first one that is not finite. Numbers are compared by
// their bits, since a compiler may assume that there is no NaN.
const THREADS = 256u;
const NOWHERE = 0xffffffffu;

var<workgroup> orders: array<u32, THREADS>;
var<workgroup> places: array<u32, THREADS>;
var<workgroup> faults: array<u32, THREADS>;

// A number that orders like the float, the same for both zeros; 0 if it is not finite.
fn order_of(bits: u32) -> u32 {
    if (bits & 0x7f800000u) == 0x7f800000u {
        return 0u;
    }
    let one_zero = select(bits, 0u, bits == 0x80000000u);
    return select(one_zero | 0x80000000u, ~one_zero, (one_zero & 0x80000000u) != 0u);
}

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let row = group.y * groups.x + group.x;
    if row >= params.n {
        return;
    }
    let start = row * params.width;
    var order = 0u;
    var place = 0u;
    var fault = NOWHERE;
    for (var i = thread; i < params.width; i += THREADS) {
        let own = order_of(x[start + i]);
        if own == 0u {
            fault = min(fault, i);
        } else if own > order {
            order = own;
            place = i;
        }
    }
    orders[thread] = order;
    places[thread] = place;
    faults[thread] = fault;
    workgroupBarrier();
    for (var apart = THREADS / 2u; apart > 0u; apart /= 2u) {
        if thread < apart {
            let other = thread + apart;
            let is_equal = orders[other] == orders[thread] && places[other] < places[thread];
            if orders[other] > orders[thread] || is_equal {
                orders[thread] = orders[other];
                places[thread] = places[other];
            }
            faults[thread] = min(faults[thread], faults[other]);
        }
        workgroupBarrier();
    }
    if thread == 0u {
        fault = faults[0];
        out[3u * row] = places[0];
        out[3u * row + 1u] = fault;
        if fault == NOWHERE {
            out[3u * row + 2u] = 0u;
        } else {
            out[3u * row + 2u] = x[start + fault];
        }
    }
}

//@ quantize
// One block of numbers. A thread makes one word of four bytes, so BLOCK / 4 threads.
var<workgroup> largest_bits: atomic<u32>;
var<workgroup> word_sums: array<i32, THREADS>;

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let block = group.y * groups.x + group.x;
    if block >= params.n {
        return;
    }
    if thread == 0u {
        atomicStore(&largest_bits, 0u);
    }
    workgroupBarrier();
    let at = block * THREADS + thread;
    let v = x[at];
    // The bits of absolute floats order like the floats, with NaN above infinity.
    let bits = bitcast<vec4<u32>>(v) & vec4<u32>(0x7fffffffu);
    atomicMax(&largest_bits, max(max(bits.x, bits.y), max(bits.z, bits.w)));
    workgroupBarrier();
    let largest = atomicLoad(&largest_bits);
    let is_fault = largest >= 0x7f800000u;
    // The bits of 1e-30.
    let is_zero = is_fault || largest < 0x0da24260u;
    let unit = bitcast<f32>(largest) / 127.0;
    let inverse = 1.0 / unit;
    let ints = vec4<i32>(
        bitcast<i32>(rounded(v.x * inverse) + 12582912.0) << 24u,
        bitcast<i32>(rounded(v.y * inverse) + 12582912.0) << 24u,
        bitcast<i32>(rounded(v.z * inverse) + 12582912.0) << 24u,
        bitcast<i32>(rounded(v.w * inverse) + 12582912.0) << 24u,
    ) >> vec4<u32>(24u);
    let bytes = select(ints, vec4<i32>(0), vec4<bool>(is_zero));
    let low = vec4<u32>(bytes) & vec4<u32>(255u);
    q[at] = low.x | (low.y << 8u) | (low.z << 16u) | (low.w << 24u);
    word_sums[thread] = bytes.x + bytes.y + bytes.z + bytes.w;
    workgroupBarrier();
    if thread % 4u == 0u {
        let low = word_sums[thread] + word_sums[thread + 1u];
        let high = word_sums[thread + 2u] + word_sums[thread + 3u];
        sums[block * (THREADS / 4u) + thread / 4u] = low + high;
    }
    if thread == 0u {
        scale[block] = select(select(unit, 0.0, is_zero), nan(), is_fault);
    }
}
