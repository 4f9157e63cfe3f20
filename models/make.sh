#!/usr/bin/env bash
# Makes the demo models again: `models/make.sh WORK_FOLDER`, about three hours on one core of a server CPU.
# Needs Python 3.11 with torch, numpy, tokenizers and gguf, a C++ compiler (for torch.compile), and the corpus program
# (`cargo build --release -p baton-corpus`). Seeds are fixed; other versions of PyTorch or other CPUs round differently.
set -euo pipefail
work=$(realpath "$1")
here=$(cd "$(dirname "$0")" && pwd)
corpus=$(realpath "$here/../target/release/baton-corpus")
cd "$here"
export OMP_NUM_THREADS=1

python3 tokenizer.py "$corpus" 1280 "$work/tok-a.json" 17
python3 tokenizer.py "$corpus" 1024 "$work/tok-b.json" 170017

stage() { # NAME FROM ARGUMENTS...
  local name=$1 from=$2
  shift 2
  python3 train.py --corpus "$corpus" --tokenizer "$work/${tokenizer:-tok-a}.json" --out "$work/$name.pt" \
    ${from:+--init "$work/$from.pt"} "$@" | tee "$work/$name.log"
}
