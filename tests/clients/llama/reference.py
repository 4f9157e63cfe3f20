"""llama.cpp as the reference of the suite `real`: tokens, greedy continuations and logits of a model file.

    python reference.py MODEL CONTEXT THREADS [KV]

Reads one request a line (JSON) from standard input and answers each with one line. KV is f16 (default) or f32.

    {"tokenize": [TEXT, ...], "special": BOOL, "bos": BOOL}  -> [[ID, ...], ...]
    {"detokenize": [[ID, ...], ...]}                       -> [hex of the bytes, ...]
    {"greedy": [ID, ...], "tokens": N}                     -> [ID, ...], ends after an end token
    {"logits": [ID, ...], "from": K, "file": PATH}         -> rows; writes the logits after tokens K.. as f32

The functions are those of `llama.h`, called in the library that the package brings. Structures that the calls take
by value are opaque here; the few fields that are set are checked for their documented defaults first.
"""

import ctypes
import glob
import importlib.util
import json
import struct
import sys

import numpy

GGML_F32, GGML_F16 = 0, 1
# Bytes of `llama_context_params`: n_ctx, n_batch, n_ubatch, n_seq_max; n_threads, n_threads_batch; type_k, type_v.
SIZES, THREADS, TYPES = 0, 28, 104
# The byte of `llama_model_params` that is `use_extra_bufts`: repacked weights, and AMX, which crashes on some CPUs.
EXTRA_BUFFERS = 74
STEP = 512


class Opaque(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint8 * 512)]

    def read(self, at: int, form: str) -> tuple:
        return struct.unpack_from(form, bytes(self.bytes), at)

    def write(self, at: int, form: str, *values: int) -> None:
        struct.pack_into(form, self.bytes, at, *values)


class Batch(ctypes.Structure):
    """`llama_batch`."""

    _fields_ = [
        ("n_tokens", ctypes.c_int32),
        ("token", ctypes.POINTER(ctypes.c_int32)),
        ("embd", ctypes.POINTER(ctypes.c_float)),
        ("pos", ctypes.POINTER(ctypes.c_int32)),
        ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    ]


def library() -> ctypes.CDLL:
    found = importlib.util.find_spec("xllamacpp")
    lib = ctypes.CDLL(glob.glob(found.submodule_search_locations[0] + "/*.so")[0])
    pointers = ["model_load_from_file", "init_from_model", "model_get_vocab", "get_memory", "get_logits_ith"]
    for name in pointers:
        getattr(lib, f"llama_{name}").restype = ctypes.c_void_p
    for name in ["model_default_params", "context_default_params"]:
        getattr(lib, f"llama_{name}").restype = Opaque
    lib.llama_vocab_is_eog.restype = ctypes.c_bool
    return lib


QUIET = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)


class Reference:
    def __init__(self, path: str, context: int, threads: int, kv: str) -> None:
        self.lib = lib = library()
        lib.llama_log_set(QUIET, None)
        lib.llama_backend_init()
        params = lib.llama_model_default_params()
        assert params.read(EXTRA_BUFFERS - 2, "???") == (False, False, True), "another layout of llama_model_params"
        params.write(EXTRA_BUFFERS, "?", False)
        self.model = lib.llama_model_load_from_file(path.encode(), params)
        assert self.model, f"llama.cpp refuses {path}"
        self.vocab = ctypes.c_void_p(lib.llama_model_get_vocab(ctypes.c_void_p(self.model)))
        self.n_vocab = lib.llama_vocab_n_tokens(self.vocab)
        params = lib.llama_context_default_params()
        known = [(SIZES, "4I", (512, 2048, 512, 1)), (THREADS, "2i", (4, 4)), (TYPES, "2i", (GGML_F16, GGML_F16))]
        for at, form, want in known:
            assert params.read(at, form) == want, "another layout of llama_context_params"
        params.write(SIZES, "4I", context, STEP, STEP, 1)
        params.write(THREADS, "2i", threads, threads)
        kind = {"f16": GGML_F16, "f32": GGML_F32}[kv]
        params.write(TYPES, "2i", kind, kind)
        self.context = ctypes.c_void_p(lib.llama_init_from_model(ctypes.c_void_p(self.model), params))
        assert self.context, "llama.cpp makes no context"
        self.memory = ctypes.c_void_p(lib.llama_get_memory(self.context))

    def tokenize(self, text: str, special: bool, bos: bool) -> list[int]:
        data = text.encode()
        room = len(data) + 8
        ids = (ctypes.c_int32 * room)()
        n = self.lib.llama_tokenize(
            self.vocab, data, len(data), ids, room, ctypes.c_bool(bos), ctypes.c_bool(special)
        )
        assert n >= 0, "a text has more tokens than bytes"
        return list(ids[:n])

    def detokenize(self, ids: list[int]) -> str:
        out = b""
        for token in ids:
            piece = ctypes.create_string_buffer(512)
            n = self.lib.llama_token_to_piece(self.vocab, token, piece, 512, 0, ctypes.c_bool(False))
            out += piece.raw[: max(n, 0)]
        return out.hex()

    def forget(self) -> None:
        self.lib.llama_memory_clear(self.memory, ctypes.c_bool(True))

    def decode(self, ids: list[int], start: int, wanted: range) -> list:
        """Computes `ids` at the positions from `start`; returns the logits after those whose index is wanted."""
        n = len(ids)
        sequence = (ctypes.c_int32 * 1)(0)
        one = ctypes.cast(sequence, ctypes.POINTER(ctypes.c_int32))
        batch = Batch(
            n,
            (ctypes.c_int32 * n)(*ids),
            None,
            (ctypes.c_int32 * n)(*range(start, start + n)),
            (ctypes.c_int32 * n)(*([1] * n)),
            (ctypes.POINTER(ctypes.c_int32) * n)(*([one] * n)),
            (ctypes.c_int8 * n)(*[int(at in wanted) for at in range(n)]),
        )
        assert self.lib.llama_decode(self.context, batch) == 0, "llama_decode failed"
        rows = []
        for at in wanted:
            address = self.lib.llama_get_logits_ith(self.context, at)
            rows.append((ctypes.c_float * self.n_vocab).from_address(address))
        return rows

    def prefill(self, ids: list[int], first: int, take) -> None:
        """Computes a prompt; calls `take` with the logits after every token from `first` on."""
        self.forget()
        for start in range(0, len(ids), STEP):
            part = ids[start : start + STEP]
            for row in self.decode(part, start, range(max(first - start, 0), len(part))):
                take(row)

    def greedy(self, ids: list[int], tokens: int) -> list[int]:
        rows = []
        self.prefill(ids, len(ids) - 1, rows.append)
        written = []
        while True:
            row = numpy.ctypeslib.as_array(rows[-1])
            # Of equal logits the one with the lower id counts.
            best = int(row.argmax())
            written.append(best)
            if len(written) == tokens or self.lib.llama_vocab_is_eog(self.vocab, best):
                return written
            rows = self.decode([best], len(ids) + len(written) - 1, range(1))

    def logits(self, ids: list[int], first: int, path: str) -> int:
        with open(path, "wb") as out:
            self.prefill(ids, first, out.write)
        return len(ids) - first


def main() -> None:
    path, context, threads, kv = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), (sys.argv[4:] or ["f16"])[0]
    reference = Reference(path, context, threads, kv)
    for line in sys.stdin:
        asked = json.loads(line)
        if "tokenize" in asked:
            answer = [reference.tokenize(text, asked["special"], asked["bos"]) for text in asked["tokenize"]]
        elif "detokenize" in asked:
            answer = [reference.detokenize(ids) for ids in asked["detokenize"]]
        elif "greedy" in asked:
            answer = reference.greedy(asked["greedy"], asked["tokens"])
        else:
            answer = reference.logits(asked["logits"], asked["from"], asked["file"])
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
