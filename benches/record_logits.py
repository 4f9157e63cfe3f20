#!/usr/bin/env python3
"""Records llama.cpp's log-probabilities for `baton-bench parity`. Used only in development.

    pip install xllamacpp                                   # a PyPI package of llama.cpp
    cargo run --release -p baton-bench -- parity --write FOLDER
    python benches/record_logits.py FOLDER benches/data/llama_cpp_logits.json [NAME ...]   # all models, or only these

Only numbers are stored. Keys and values are f32 and flash attention is off, so that the numbers depend only on the
arithmetic of the weight formats.
"""

import hashlib
import json
import statistics
import sys
from pathlib import Path

import xllamacpp as xlc

N_FULL_ROWS = 2


def server(path: str) -> "xlc.Server":
    params = xlc.CommonParams()
    params.model.path = path
    params.n_ctx = 512
    params.n_parallel = 1
    params.cpuparams.n_threads = 1
    params.cpuparams_batch.n_threads = 1
    params.cache_type_k = xlc.ggml_type.GGML_TYPE_F32
    params.cache_type_v = xlc.ggml_type.GGML_TYPE_F32
    params.flash_attn_type = xlc.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.no_extra_bufts = True
    params.warmup = False
    return xlc.Server(params)


def logprobs(serving: "xlc.Server", ids: list[int]) -> list[float]:
    """Returns the log-probability of every possible next token after `ids`, by token id."""
    request = {
        "prompt": ids,
        "n_predict": 1,
        "n_probs": 1 << 20,
        "temperature": 0.0,
        "cache_prompt": False,
        # The written token does not matter, but an end token or a part of a character would come without
        # numbers. So one token gets a large bias; the log-probabilities are computed before it is applied.
        "logit_bias": [["a", 1e4]],
    }
    reply = serving.handle_completions(request)
    (step,) = reply["choices"][0]["logprobs"]["content"]
    row = {entry["id"]: entry["logprob"] for entry in step["top_logprobs"]}
    assert sorted(row) == list(range(len(row))), "every token has one log-probability"
    assert min(row.values()) > -1e4, "no token was left out"
    return [row[token] for token in range(len(row))]


def record(task: dict) -> dict:
    serving = server(task["path"])
    prompt = task["prompt"]
    full = {len(prompt) * (i + 1) // N_FULL_ROWS for i in range(N_FULL_ROWS)}
    tops, rows = [], []
    for tokens in range(1, len(prompt) + 1):
        row = logprobs(serving, prompt[:tokens])
        first, second = sorted(row, reverse=True)[:2]
        tops.append([row.index(first), round((first - second) / statistics.pstdev(row), 4)])
        if tokens in full:
            rows.append({"tokens": tokens, "logprobs": [round(value, 5) for value in row]})
    digest = hashlib.sha256(Path(task["path"]).read_bytes()).hexdigest()
    return {"name": task["name"], "sha256": digest, "prompt": prompt, "tops": tops, "rows": rows}


def main() -> None:
    folder, out, names = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
    tasks = json.loads((folder / "tasks.json").read_text())
    kept = {model["name"]: model for model in json.loads(out.read_text())["models"]} if names else {}
    models = []
    for task in tasks:
        if names and task["name"] not in names:
            models.append(kept[task["name"]])
            continue
        models.append(record(task))
        print(task["name"], "recorded", file=sys.stderr)
    version = f"of xllamacpp {xlc.__version__}"
    lines = ",\n".join(json.dumps(model, separators=(",", ":")) for model in models)
    out.write_text(f'{{"llama_cpp":{json.dumps(version)},"models":[\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
