"""Records what PyPI's gguf makes of random blocks, for the tests of the formats.

Needs gguf 0.19.0 and numpy 2.4.6. Usage: python3 kernels/cpu/tests/record_formats.py > kernels/cpu/tests/data/formats.txt

Lines: `grid FORMAT HEX`, a codebook, two bytes a code: eight members of two bits, or four of four bits (IQ3);
`dequantize FORMAT BLOCK HASH`, random bytes with finite scales and the FNV-1a hash of the floats' bytes;
`quantize FORMAT FLOATS BLOCKS`, for the formats that gguf can write. All bytes are little-endian.
"""

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as Type
from gguf.quants import IQ1_S, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS, dequantize, quantize

GRIDS = [IQ1_S, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S]

# Where a block's binary16 numbers lie; that of IQ1_M is in four nibbles, the highest in the last byte. MXFP4 has none.
HALVES = {
    Type.BF16: [0], Type.Q4_0: [0], Type.Q4_1: [0, 2], Type.Q5_0: [0], Type.Q5_1: [0, 2], Type.Q8_0: [0],
    Type.Q2_K: [80, 82], Type.Q3_K: [108], Type.Q4_K: [0, 2], Type.Q5_K: [0, 2], Type.Q6_K: [208],
    Type.IQ1_S: [0], Type.IQ1_M: [54], Type.IQ4_NL: [0], Type.IQ4_XS: [0],
    Type.IQ2_XXS: [0], Type.IQ2_XS: [0], Type.IQ2_S: [0], Type.IQ3_XXS: [0], Type.IQ3_S: [0],
    Type.TQ1_0: [52], Type.TQ2_0: [64], Type.MXFP4: [],
}
# The exponents of MXFP4: the subnormal scales, usual ones, and the highest that give finite numbers.
EXPONENTS = [0, 1, 2, 3, 120, 128, 251, 252]
WRITTEN = [
    Type.BF16, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q8_0, Type.TQ1_0, Type.TQ2_0, Type.MXFP4,
]


def fnv1a(data: bytes) -> int:
    hash = 0xCBF29CE484222325
    for byte in data:
        hash = (hash ^ byte) * 0x100000001B3 % (1 << 64)
    return hash


def main() -> None:
    random = np.random.default_rng(3)
    for grid in GRIDS:
        print("grid", grid.__name__, bytes(grid.grid_hex).decode())
    for kind, halves in HALVES.items():
        values, size = GGML_QUANT_SIZES[kind]
        # At least 32 values a line, so that BF16 has more than one.
        repeat = max(1, 32 // values)
        for exponent in EXPONENTS:
            blocks = random.integers(0, 256, (repeat, size), dtype=np.uint8)
            for at in halves:
                blocks[:, at + 1] &= 0xBF
            if kind == Type.MXFP4:
                blocks[:, 0] = exponent
            row = blocks.reshape(-1)
            floats = np.ascontiguousarray(dequantize(row, kind), dtype="<f4")
            assert np.isfinite(floats).all()
            print("dequantize", kind.name, row.tobytes().hex(), f"{fnv1a(floats.tobytes()):016x}")
    for kind in WRITTEN:
        for _ in range(4):
            floats = (random.standard_normal(max(32, GGML_QUANT_SIZES[kind][0])) * 10 ** random.uniform(-3, 3)).astype("<f4")
            blocks = np.ascontiguousarray(quantize(floats, kind))
            print("quantize", kind.name, floats.tobytes().hex(), blocks.tobytes().hex())


if __name__ == "__main__":
    main()
