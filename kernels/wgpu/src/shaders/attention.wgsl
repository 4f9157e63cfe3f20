//@ item
// One item: up to sixteen vectors, numbered `row * heads + head`.
struct Item {
    row: u32,
    rows: u32,
    position: u32,
    table_at: u32,
    head: u32,
    heads: u32,
}

fn item_at(i: u32) -> Item {
    let at = 8u * i;
    return Item(items[at], items[at + 1u], items[at + 2u], items[at + 3u], items[at + 4u], items[at + 5u]);
}

// The place of a vector's first pair of dimensions in the queries and the outputs.
fn vector_at(item: Item, g: u32, v: u32) -> u32 {
    let heads = params.kv_heads * params.group;
    let head = g * params.group + item.head + v % item.heads;
    return ((item.row + v / item.heads) * heads + head) * (params.d / 2u);
}

//@ visible
// A mask with the lowest bits set.
fn ones(n: u32) -> u32 {
    return select((1u << (n & 31u)) - 1u, 0xffffffffu, n >= 32u);
}

// The keys of a chunk that begins at `first`, up to `position`.
fn up_to(position: u32, first: u32) -> u32 {
    return ones(select(0u, position - first, position > first));
}

// The oldest position in the window of a query.
fn oldest_of(query: u32) -> u32 {
    return select(0u, query + 1u - params.window, query + 1u > params.window);
}

// Bit `i` is set if the query sees key `first + i`.
fn mask_of(query: u32, first: u32) -> u32 {
    return up_to(query + 1u, first) & (up_to(params.first_keys, first) | ~up_to(oldest_of(query), first));
}

fn capped(score: f32) -> f32 {
    if params.cap == 0.0 {
        return score;
    }
    return soft_cap(score, params.cap);
}

//@ part
const THREADS = 128u;
const CHUNK = 32u;
const PART = 256u;

// Scores, then weights: of key `i` and four vectors, at `(chunk * groups of vectors + group) * 32 + i`. A
// step takes as many chunks as fit.
var<workgroup> scores: array<vec4<f32>, THREADS>;
// The queries, if there is room: dimension `c` of four vectors, at `group * d + c`.
var<workgroup> queries: array<vec4<f32>, QUERIES_LEN>;
// For each chunk of a step and each vector: the largest score so far, and the factor of what came before.
var<workgroup> tops: array<f32, 64>;
var<workgroup> fades: array<f32, 64>;

// Sums of the values: for each slot, group of vectors and parity of the dimension.
var<private> sums: array<vec4<f32>, SLOTS * GROUPS * 2u>;
// The state of vector `thread`.
var<private> top: f32;
var<private> sum: f32;

struct Place {
    item: Item,
    g: u32,
    vectors: u32,
    groups: u32,
    thread: u32,
}

fn vector_mask(place: Place, v: u32, chunk: u32) -> u32 {
    let mask = mask_of(place.item.position + v / place.item.heads, CHUNK * chunk);
    return select(0u, mask, v < place.vectors);
}

fn four_masks(place: Place, group: u32, chunk: u32) -> vec4<u32> {
    let v = 4u * group;
    return vec4<u32>(
        vector_mask(place, v, chunk),
        vector_mask(place, v + 1u, chunk),
        vector_mask(place, v + 2u, chunk),
        vector_mask(place, v + 3u, chunk),
    );
}

// The first key or value word of a chunk's head.
fn head_at(place: Place, chunk: u32) -> u32 {
    return (blocks[place.item.table_at + chunk] * params.kv_heads + place.g) * CHUNK * (params.d / 2u);
}

// The first pairs of dimensions of four vectors; those past the last vector are the last one again.
fn four_vectors(place: Place, group: u32) -> vec4<u32> {
    let last = place.vectors - 1u;
    return vec4<u32>(
        vector_at(place.item, place.g, min(4u * group, last)),
        vector_at(place.item, place.g, min(4u * group + 1u, last)),
        vector_at(place.item, place.g, min(4u * group + 2u, last)),
        vector_at(place.item, place.g, min(4u * group + 3u, last)),
    );
}

fn evens(v: vec4<u32>, c: u32) -> vec4<f32> {
    return vec4<f32>(q[v.x + c].x, q[v.y + c].x, q[v.z + c].x, q[v.w + c].x);
}

fn odds(v: vec4<u32>, c: u32) -> vec4<f32> {
    return vec4<f32>(q[v.x + c].y, q[v.y + c].y, q[v.z + c].y, q[v.w + c].y);
}

// Brings the queries near.
fn store_queries(place: Place) {
    if HAS_QUERIES {
        let pairs = params.d / 2u;
        for (var i = place.thread; i < place.groups * pairs; i += THREADS) {
            let v = four_vectors(place, i / pairs);
            queries[2u * i] = evens(v, i % pairs);
            queries[2u * i + 1u] = odds(v, i % pairs);
        }
        workgroupBarrier();
    }
}

// The scores of key `key` of a chunk for four vectors.
fn scores_of(place: Place, group: u32, chunk: u32, key: u32) -> vec4<f32> {
    let masks = four_masks(place, group, chunk);
    let low = vec4<f32>(-infinity());
    if all(masks == vec4<u32>(0u)) {
        return low;
    }
    let pairs = params.d / 2u;
    let at = head_at(place, chunk) + key;
    let v = four_vectors(place, group);
    let near = 2u * pairs * group;
    var dot = vec4<f32>(0.0);
    for (var first = 0u; first < pairs; first += 16u) {
        var p = vec4<f32>(0.0);
        let end = min(first + 16u, pairs);
        for (var c = first; c < end; c++) {
            let k = unpack2x16float(keys[at + CHUNK * c]);
            var even: vec4<f32>;
            var odd: vec4<f32>;
            if HAS_QUERIES {
                even = queries[near + 2u * c];
                odd = queries[near + 2u * c + 1u];
            } else {
                even = evens(v, c);
                odd = odds(v, c);
            }
            p = fused_4(even, vec4<f32>(k.x), p);
            p = fused_4(odd, vec4<f32>(k.y), p);
        }
        dot += p;
    }
    let scaled = dot * params.scale;
    let s = vec4<f32>(capped(scaled.x), capped(scaled.y), capped(scaled.z), capped(scaled.w));
    let is_seen = ((masks >> vec4<u32>(key)) & vec4<u32>(1u)) != vec4<u32>(0u);
    return select(low, s, is_seen);
}

fn largest_16(at: u32, c: u32) -> f32 {
    return larger(scores[at][c], scores[at + 16u][c]);
}

fn largest_8(at: u32, c: u32) -> f32 {
    return larger(largest_16(at, c), largest_16(at + 8u, c));
}

fn largest_4(at: u32, c: u32) -> f32 {
    return larger(largest_8(at, c), largest_8(at + 4u, c));
}

// The largest of 32 scores, compared in the order of kernels/cpu.
fn largest_of(at: u32, c: u32) -> f32 {
    let even = larger(largest_4(at, c), largest_4(at + 2u, c));
    return larger(even, larger(largest_4(at + 1u, c), largest_4(at + 3u, c)));
}

fn sum_16(at: u32, c: u32) -> f32 {
    return scores[at][c] + scores[at + 16u][c];
}

fn sum_4(at: u32, c: u32) -> f32 {
    return (sum_16(at, c) + sum_16(at + 8u, c)) + (sum_16(at + 4u, c) + sum_16(at + 12u, c));
}

fn sum_of(at: u32, c: u32) -> f32 {
    return (sum_4(at, c) + sum_4(at + 2u, c)) + (sum_4(at + 1u, c) + sum_4(at + 3u, c));
}

// Adds the values of a chunk, the `k`-th of its step, to the sums.
fn add_values(place: Place, chunk: u32, k: u32) {
    let pairs = params.d / 2u;
    let first_group = place.thread / PAIR_THREADS * GROUPS;
    if first_group >= place.groups {
        return;
    }
    let first_key = CHUNK * chunk;
    let newest = place.item.position + place.item.rows - 1u;
    let in_window = first_key >= oldest_of(newest) || first_key + CHUNK <= params.first_keys;
    let is_full = first_key + CHUNK <= place.item.position + 1u && in_window;
    let keys_seen = min(CHUNK, newest + 1u - first_key);
    for (var slot = 0u; slot < SLOTS; slot++) {
        let pair = place.thread % PAIR_THREADS + slot * PAIR_THREADS;
        let at = head_at(place, chunk) + min(pair, pairs - 1u);
        for (var n = 0u; n < GROUPS; n++) {
            let f = 16u * k + 4u * (first_group + n);
            let fade = vec4<f32>(fades[f], fades[f + 1u], fades[f + 2u], fades[f + 3u]);
            sums[2u * (slot * GROUPS + n)] *= fade;
            sums[2u * (slot * GROUPS + n) + 1u] *= fade;
        }
        if is_full {
            for (var i = 0u; i < CHUNK; i++) {
                let value = unpack2x16float(values[at + i * pairs]);
                for (var n = 0u; n < GROUPS; n++) {
                    if first_group + n < place.groups {
                        let weight = scores[(k * place.groups + first_group + n) * CHUNK + i];
                        let to = 2u * (slot * GROUPS + n);
                        sums[to] = fused_4(weight, vec4<f32>(value.x), sums[to]);
                        sums[to + 1u] = fused_4(weight, vec4<f32>(value.y), sums[to + 1u]);
                    }
                }
            }
            continue;
        }
        for (var n = 0u; n < GROUPS; n++) {
            if first_group + n < place.groups {
                let masks = four_masks(place, first_group + n, chunk);
                let to = 2u * (slot * GROUPS + n);
                for (var i = 0u; i < keys_seen; i++) {
                    let value = unpack2x16float(values[at + i * pairs]);
                    let weight = scores[(k * place.groups + first_group + n) * CHUNK + i];
                    let is_seen = ((masks >> vec4<u32>(i)) & vec4<u32>(1u)) != vec4<u32>(0u);
                    let even = fused_4(weight, vec4<f32>(value.x), sums[to]);
                    let odd = fused_4(weight, vec4<f32>(value.y), sums[to + 1u]);
                    sums[to] = select(sums[to], even, is_seen);
                    sums[to + 1u] = select(sums[to + 1u], odd, is_seen);
                }
            }
        }
    }
}

// Moves the state of vector `thread` to the chunks of a step, and leaves tops and fades for the others.
fn raise_tops(place: Place, first: u32, count: u32) {
    let v = place.thread;
    for (var k = 0u; k < count; k++) {
        var fade = 1.0;
        if vector_mask(place, v, first + k) != 0u {
            let largest = largest_of((k * place.groups + v / 4u) * CHUNK, v % 4u);
            let raised = larger(top, largest);
            fade = exponential(top - raised);
            top = raised;
        }
        tops[16u * k + v] = top;
        fades[16u * k + v] = fade;
    }
}

// The weights of key `thread % 32` of its chunk for four vectors.
fn weigh(place: Place, group: u32, chunk: u32, k: u32) {
    let thread = place.thread;
    let t = 16u * k + 4u * group;
    let s = scores[thread] - vec4<f32>(tops[t], tops[t + 1u], tops[t + 2u], tops[t + 3u]);
    let e = vec4<f32>(exponential(s.x), exponential(s.y), exponential(s.z), exponential(s.w));
    let masks = four_masks(place, group, chunk);
    let is_seen = ((masks >> vec4<u32>(thread % CHUNK)) & vec4<u32>(1u)) != vec4<u32>(0u);
    scores[thread] = select(vec4<f32>(0.0), e, is_seen);
}

// Attends all vectors to the chunks of a part, from an empty state.
fn attend_part(place: Place, part: u32) {
    top = -infinity();
    sum = 0.0;
    for (var i = 0u; i < SLOTS * GROUPS * 2u; i++) {
        sums[i] = vec4<f32>(0.0);
    }
    let newest = place.item.position + place.item.rows - 1u;
    let end = min((part + 1u) * (PART / CHUNK), newest / CHUNK + 1u);
    let oldest = oldest_of(place.item.position);
    let step = 4u / place.groups;
    let group = place.thread / CHUNK % place.groups;
    let k = place.thread / CHUNK / place.groups;
    for (var first = part * (PART / CHUNK); first < end; first += step) {
        let count = min(step, end - first);
        if CHUNK * (first + count) <= oldest && CHUNK * first >= params.first_keys {
            continue;
        }
        if k < count {
            scores[place.thread] = scores_of(place, group, first + k, place.thread % CHUNK);
        }
        workgroupBarrier();
        if place.thread < 16u {
            raise_tops(place, first, count);
        }
        workgroupBarrier();
        if k < count {
            weigh(place, group, first + k, k);
        }
        workgroupBarrier();
        if place.thread < place.vectors {
            for (var c = 0u; c < count; c++) {
                if vector_mask(place, place.thread, first + c) != 0u {
                    let at = (c * place.groups + place.thread / 4u) * CHUNK;
                    sum = fused(sum, fades[16u * c + place.thread], sum_of(at, place.thread % 4u));
                }
            }
        }
        for (var c = 0u; c < count; c++) {
            add_values(place, first + c, c);
        }
        workgroupBarrier();
    }
}

//@ attend
// For each vector: whether the part counts, the factors of what came before and of the part, the factor of
// the sink, and the sum of weights.
struct Join {
    is_seen: u32,
    before: f32,
    here: f32,
    sink: f32,
    sum: f32,
}

var<workgroup> joins: array<Join, 16>;
var<private> total_top: f32;
var<private> total_sum: f32;

// Joins the state of vector `thread` to the total.
fn join_state(place: Place, is_last: bool) {
    let v = place.thread;
    var join = Join(0u, 1.0, 0.0, 1.0, 0.0);
    if sum != 0.0 {
        let raised = larger(total_top, top);
        join = Join(1u, exponential(total_top - raised), exponential(top - raised), 1.0, 0.0);
        total_sum = fused(sum, join.here, total_sum * join.before);
        total_top = raised;
    }
    if is_last {
        let head = place.g * params.group + place.item.head + v % place.item.heads;
        if params.has_sinks != 0u {
            let raised = larger(total_top, sinks[head]);
            join.sink = exponential(total_top - raised);
            total_sum = fused(total_sum, join.sink, exponential(sinks[head] - raised));
            total_top = raised;
        }
        let at = (place.item.row + v / place.item.heads) * params.lse_width + head;
        lse[at] = select(total_top + log(total_sum), -infinity(), total_sum == 0.0);
    }
    join.sum = total_sum;
    joins[v] = join;
}

// Joins the sums of the values to those in `out`.
fn join_sums(place: Place, is_first: bool, is_last: bool) {
    let first_group = place.thread / PAIR_THREADS * GROUPS;
    for (var slot = 0u; slot < SLOTS; slot++) {
        let pair = place.thread % PAIR_THREADS + slot * PAIR_THREADS;
        for (var i = 0u; i < 4u * GROUPS; i++) {
            let v = 4u * first_group + i;
            if v < place.vectors && pair < params.d / 2u {
                let at = vector_at(place.item, place.g, v) + pair;
                let source = 2u * (slot * GROUPS + i / 4u);
                let join = joins[v];
                var total = vec2<f32>(0.0);
                if !is_first {
                    total = out[at];
                }
                if join.is_seen != 0u {
                    let here = vec2<f32>(sums[source][i % 4u], sums[source + 1u][i % 4u]);
                    total = fused_2(here, vec2<f32>(join.here), total * join.before);
                }
                if is_last {
                    if params.has_sinks != 0u {
                        total *= join.sink;
                    }
                    if join.sum != 0.0 {
                        total = total / join.sum;
                    }
                }
                out[at] = total;
            }
        }
    }
}

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let item = item_at(group.x);
    let vectors = item.rows * item.heads;
    if vectors == 0u {
        return;
    }
    let place = Place(item, group.y, vectors, (vectors + 3u) / 4u, thread);
    store_queries(place);
    total_top = -infinity();
    total_sum = 0.0;
    let oldest = oldest_of(item.position);
    let last = (item.position + item.rows - 1u) / PART;
    var is_first = true;
    for (var part = 0u; part <= last; part++) {
        if part < last && PART * (part + 1u) <= oldest && PART * part >= params.first_keys {
            continue;
        }
        attend_part(place, part);
        if thread < vectors {
            join_state(place, part == last);
        }
        workgroupBarrier();
        join_sums(place, is_first, part == last);
        is_first = false;
        workgroupBarrier();
    }
}

//@ attend_part
@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let item = item_at(group.x);
    let vectors = item.rows * item.heads;
    if vectors == 0u {
        return;
    }
    let place = Place(item, group.y, vectors, (vectors + 3u) / 4u, thread);
    store_queries(place);
    attend_part(place, group.z);
    let first_state = ((group.x * params.kv_heads + group.y) * params.parts + group.z) * 16u;
    let state_len = 2u + params.d;
    if thread < vectors {
        states[(first_state + thread) * state_len] = top;
        states[(first_state + thread) * state_len + 1u] = sum;
    }
    let first_group = thread / PAIR_THREADS * GROUPS;
    for (var slot = 0u; slot < SLOTS; slot++) {
        let pair = thread % PAIR_THREADS + slot * PAIR_THREADS;
        for (var i = 0u; i < 4u * GROUPS; i++) {
            let v = 4u * first_group + i;
            if v < vectors && pair < params.d / 2u {
                let at = (first_state + v) * state_len + 2u + 2u * pair;
                let source = 2u * (slot * GROUPS + i / 4u);
                states[at] = sums[source][i % 4u];
                states[at + 1u] = sums[source + 1u][i % 4u];
            }
        }
    }
}

//@ attend_join
// Each thread joins the states of pairs of dimensions; the factors of the states are found by each.
@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let item = item_at(group.x);
    let vectors = item.rows * item.heads;
    let pairs = params.d / 2u;
    let state_len = 2u + params.d;
    for (var i = thread; i < vectors * pairs; i += 128u) {
        let v = i / pairs;
        let pair = i % pairs;
        var total_top = -infinity();
        var total_sum = 0.0;
        var total = vec2<f32>(0.0);
        for (var part = 0u; part < params.parts; part++) {
            let state = (((group.x * params.kv_heads + group.y) * params.parts + part) * 16u + v) * state_len;
            let sum = states[state + 1u];
            if sum != 0.0 {
                let raised = larger(total_top, states[state]);
                let before = exponential(total_top - raised);
                let here = exponential(states[state] - raised);
                total_sum = fused(sum, here, total_sum * before);
                total_top = raised;
                let of_part = vec2<f32>(states[state + 2u + 2u * pair], states[state + 3u + 2u * pair]);
                total = fused_2(of_part, vec2<f32>(here), total * before);
            }
        }
        let head = group.y * params.group + item.head + v % item.heads;
        if params.has_sinks != 0u {
            let raised = larger(total_top, sinks[head]);
            let fade = exponential(total_top - raised);
            total_sum = fused(total_sum, fade, exponential(sinks[head] - raised));
            total_top = raised;
            total *= fade;
        }
        if total_sum != 0.0 {
            total = total / total_sum;
        }
        out[vector_at(item, group.y, v) + pair] = total;
        if pair == 0u {
            let at = (item.row + v / item.heads) * params.lse_width + head;
            lse[at] = select(total_top + log(total_sum), -infinity(), total_sum == 0.0);
        }
    }
}

//@ score
fn apply(i: u32) {
    let pairs = params.d / 2u;
    let chunk = i / 32u;
    let at = (blocks[chunk] * params.kv_heads + params.kv_head) * 32u * pairs + i % 32u;
    var total = 0.0;
    for (var r = 0u; r < params.rows; r++) {
        if ((mask_of(params.position + r, 32u * chunk) >> (i % 32u)) & 1u) == 0u {
            continue;
        }
        let row = params.row + r;
        let vector = (row * params.q_width + params.head * params.d) / 2u;
        var dot = 0.0;
        for (var first = 0u; first < pairs; first += 16u) {
            var p = 0.0;
            for (var c = first; c < min(first + 16u, pairs); c++) {
                let k = unpack2x16float(keys[at + 32u * c]);
                let x = q[vector + c];
                p = fused(x.x, k.x, p);
                p = fused(x.y, k.y, p);
            }
            dot += p;
        }
        let score = rounded(capped(rounded(dot * params.scale)));
        total += exponential(score - lse[row * params.lse_width + params.head]);
    }
    out[i] = total;
}
