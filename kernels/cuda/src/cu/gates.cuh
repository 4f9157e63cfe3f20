// Gates of feed-forward networks (`rows.rs`): `apply(gate, up)`.

struct Swiglu {
    DEVICE float apply(float x, float y) { return mul(divide(x, add(1.0f, exponential(-x))), y); }
};
struct Geglu {
    DEVICE float apply(float x, float y) {
        float twice_u = mul(mul(1.595769f, x), add(1.0f, mul(mul(0.044715f, x), x)));
        return mul(divide(x, add(1.0f, exponential(-twice_u))), y);
    }
};
struct SwigluClamped {
    DEVICE float apply(float gate, float up) {
        float x = gate > 7.0f ? 7.0f : gate;
        float y = up > 7.0f ? 7.0f : up;
        y = y < -7.0f ? -7.0f : y;
        return mul(divide(x, add(1.0f, exponential(mul(-1.702f, x)))), add(y, 1.0f));
    }
};
