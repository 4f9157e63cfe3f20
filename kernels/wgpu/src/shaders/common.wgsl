//@ fused
// `a * b + c` rounded once.
fn fused(a: f32, b: f32, c: f32) -> f32 {
    return fma(a, b, c);
}

fn fused_2(a: vec2<f32>, b: vec2<f32>, c: vec2<f32>) -> vec2<f32> {
    return fma(a, b, c);
}

fn fused_4(a: vec4<f32>, b: vec4<f32>, c: vec4<f32>) -> vec4<f32> {
    return fma(a, b, c);
}

//@ fused_by_f64
// `a * b + c` rounded once, for programs that stand for a GPU and round `fma` twice. The product is exact;
// the sum is rounded to f64 first, which changes the result once in some hundred million times.
fn fused(a: f32, b: f32, c: f32) -> f32 {
    return f32(f64(a) * f64(b) + f64(c));
}

fn fused_2(a: vec2<f32>, b: vec2<f32>, c: vec2<f32>) -> vec2<f32> {
    return vec2<f32>(vec2<f64>(a) * vec2<f64>(b) + vec2<f64>(c));
}

fn fused_4(a: vec4<f32>, b: vec4<f32>, c: vec4<f32>) -> vec4<f32> {
    return vec4<f32>(vec4<f64>(a) * vec4<f64>(b) + vec4<f64>(c));
}

//@ probe
// Whether `fma` rounds once: the square of 1 + 2^-12 has a last bit that a rounded product does not.
@compute @workgroup_size(1)
fn main() {
    let error = fma(params.a, params.a, -params.square);
    out[0] = u32(error != 0.0);
}

//@ functions
// Rounds a product before it is added to something. A compiler may fuse a product with a sum; it cannot
// look through the exclusive or with a number that it does not know (and that is 0).
fn rounded(x: f32) -> f32 {
    return bitcast<f32>(bitcast<u32>(x) ^ params.zero);
}

fn infinity() -> f32 {
    return bitcast<f32>(0x7f800000u ^ params.zero);
}

fn nan() -> f32 {
    return bitcast<f32>(0x7fc00000u ^ params.zero);
}

// The larger of two; the second if they are equal or either is NaN.
fn larger(a: f32, b: f32) -> f32 {
    return select(b, a, a > b);
}

// e^x by the polynomial of kernels/cpu.
fn exponential(x: f32) -> f32 {
    let shifted = rounded(fused(x, 1.442695, 12582912.0));
    let n = shifted - 12582912.0;
    let r = fused(n, 2.1219444e-4, fused(n, -0.6933594, x));
    var p = 1.984127e-4;
    p = fused(p, r, 1.3888889e-3);
    p = fused(p, r, 8.333334e-3);
    p = fused(p, r, 4.1666668e-2);
    p = fused(p, r, 0.16666667);
    p = fused(p, r, 0.5);
    p = fused(p, r, 1.0);
    p = fused(p, r, 1.0);
    let value = p * bitcast<f32>((bitcast<u32>(shifted) << 23u) + 0x3f800000u);
    return select(select(value, infinity(), x > 88.0), 0.0, x < -87.0);
}

fn soft_cap(x: f32, cap: f32) -> f32 {
    let y = x / cap;
    return cap * (1.0 - 2.0 / (1.0 + exponential(y + y)));
}
