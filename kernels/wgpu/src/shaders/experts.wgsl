//@ route
// Chooses the experts of a token. `work` has four numbers for each expert: factors; ranks; ranks of groups,
// and then the chosen experts; factors of these. Ranks are compared as integers, since a compiler may assume
// that there is no NaN.
const THREADS = 256u;

var<workgroup> lanes: array<f32, 16>;
var<workgroup> tile: array<u32, THREADS>;

// A number that orders like the float: the same for both zeros, the greatest for NaN. It is never 0.
fn rank_of(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    if (bits & 0x7fffffffu) > 0x7f800000u {
        return 0xffffffffu;
    }
    let one_zero = select(bits, 0u, bits == 0x80000000u);
    return select(one_zero | 0x80000000u, ~one_zero, (one_zero & 0x80000000u) != 0u);
}

fn number(i: u32) -> f32 {
    return bitcast<f32>(work[i]);
}

fn set_number(i: u32, x: f32) {
    work[i] = bitcast<u32>(x);
}

// Shows all threads what each has written.
fn meet() {
    storageBarrier();
    workgroupBarrier();
}

// Turns `n` numbers from `at` on into weights that sum to 1. Sums run in sixteen lanes.
fn softmax(thread: u32, at: u32, n: u32) {
    if thread < 16u {
        var top = -infinity();
        for (var i = thread; i < n; i += 16u) {
            top = larger(number(at + i), top);
        }
        lanes[thread] = top;
    }
    workgroupBarrier();
    var top = lanes[0];
    for (var i = 1u; i < 16u; i++) {
        top = larger(lanes[i], top);
    }
    for (var i = thread; i < n; i += THREADS) {
        set_number(at + i, exponential(number(at + i) - top));
    }
    meet();
    if thread < 16u {
        var sum = 0.0;
        for (var i = thread; i < n; i += 16u) {
            sum += number(at + i);
        }
        lanes[thread] = sum;
    }
    workgroupBarrier();
    var four: array<f32, 4>;
    for (var i = 0u; i < 4u; i++) {
        four[i] = (lanes[i] + lanes[i + 8u]) + (lanes[i + 4u] + lanes[i + 12u]);
    }
    let sum = (four[0] + four[2]) + (four[1] + four[3]);
    for (var i = thread; i < n; i += THREADS) {
        set_number(at + i, number(at + i) / sum);
    }
    meet();
}

// The factor of an expert with the bias of the choice.
fn biased(at: u32, i: u32) -> f32 {
    var added = 0.0;
    if params.has_bias != 0u {
        added = bias[i];
    }
    return number(at + i) + added;
}

// Gives up the experts of all groups but the best: their ranks become 0.
fn keep_groups(thread: u32, at: u32) {
    let ranks = at + params.count;
    let group_ranks = ranks + params.count;
    let each = params.count / params.groups;
    for (var g = thread; g < params.groups; g += THREADS) {
        var first = g * each;
        var second = first + 1u;
        if work[ranks + second] > work[ranks + first] {
            first = second;
            second = g * each;
        }
        for (var i = g * each + 2u; i < (g + 1u) * each; i++) {
            if work[ranks + i] > work[ranks + first] {
                second = first;
                first = i;
            } else if work[ranks + i] > work[ranks + second] {
                second = i;
            }
        }
        work[group_ranks + g] = rank_of(biased(at, first) + biased(at, second));
    }
    meet();
    for (var i = thread; i < params.count; i += THREADS) {
        let own = i / each;
        let rank = work[group_ranks + own];
        var better = 0u;
        for (var g = 0u; g < params.groups; g++) {
            let other = work[group_ranks + g];
            if other > rank || (other == rank && g < own) {
                better++;
            }
        }
        if better >= params.groups_used {
            work[ranks + i] = 0u;
        }
    }
    meet();
}

// Sets the chosen experts: those with the greatest ranks, the best first; of equal ones the lower id.
fn choose(thread: u32, ranks: u32, best: u32) {
    for (var first = 0u; first < params.count; first += THREADS) {
        let own = first + thread;
        var rank = 0u;
        if own < params.count {
            rank = work[ranks + own];
        }
        var better = 0u;
        for (var start = 0u; start < params.count; start += THREADS) {
            let n = min(THREADS, params.count - start);
            workgroupBarrier();
            if thread < n {
                tile[thread] = work[ranks + start + thread];
            }
            workgroupBarrier();
            for (var i = 0u; i < n; i++) {
                if tile[i] > rank || (tile[i] == rank && start + i < own) {
                    better++;
                }
            }
        }
        if own < params.count && better < params.used {
            work[best + better] = own;
        }
    }
    meet();
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
    let count = params.count;
    let used = params.used;
    let at = 4u * row * count;
    let ranks = at + count;
    let best = at + 2u * count;
    let chosen = at + 3u * count;
    for (var i = thread; i < count; i += THREADS) {
        var own_number = x[row * count + i];
        if params.gating == 1u {
            own_number = 1.0 / (1.0 + exponential(-own_number));
        }
        set_number(at + i, own_number);
    }
    meet();
    if params.gating == 0u {
        softmax(thread, at, count);
    }
    for (var i = thread; i < count; i += THREADS) {
        work[ranks + i] = rank_of(biased(at, i));
    }
    meet();
    if params.groups != 0u {
        keep_groups(thread, at);
    }
    choose(thread, ranks, best);
    for (var i = thread; i < used; i += THREADS) {
        work[chosen + i] = work[at + work[best + i]];
    }
    meet();
    if params.gating == 2u {
        softmax(thread, chosen, used);
    }
    var divisor = 1.0;
    if params.normalized != 0u {
        var sum = number(chosen);
        for (var i = 1u; i < used; i++) {
            sum += number(chosen + i);
        }
        divisor = larger(sum, 6.1035156e-5);
    }
    for (var i = thread; i < used; i += THREADS) {
        let id = work[best + i];
        var slot = 0u;
        for (var k = 0u; k < used; k++) {
            slot += u32(work[best + k] < id);
        }
        var factor = number(chosen + i) / divisor * params.scale;
        if params.has_own != 0u {
            factor = factor * own[id];
        }
        let to = 2u * (row * used + slot);
        routes[to] = id;
        routes[to + 1u] = bitcast<u32>(factor);
    }
}
