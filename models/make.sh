#!/usr/bin/env bash
# Makes the demo models again: `models/make.sh WORK_FOLDER`, about 1.5 hours on one core of a server CPU.
# Needs Python 3.11 with torch, numpy, tokenizers and gguf, a C++ compiler (for torch.compile), the corpus program and the
# cloud (`cargo build --release -p baton-corpus -p baton-cloud`). Seeds are fixed; other versions of PyTorch or other CPUs
# round differently.
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

# The common base: 4 layers, rows of 128, 256 and 800 tokens.
stage s1 "" --seed 1 --length 128 --batch 24 --words 20-70 --repeats 0.5 \
  --muon 3e-3 --lr 1.5e-3 --warmup 30 --tokens 3e5
stage s2 s1 --seed 2 --length 256 --batch 12 --words 30-150 --repeats 0.15 --mix 0.55,0.4,0.05 --span 400 \
  --muon 3e-3 --lr 1.5e-3 --warmup 30 --tokens 1e6 --test 60-130
rows800=(--length 800 --batch 4 --words 80-440 --refined 0.3 --refined-words 120-480 --mix 0.5,0.45,0.05 --span 1600)
stage s3 s2 --seed 3 "${rows800[@]}" --repeats 0.1 --muon 3e-3 --lr 1.2e-3 --warmup 30 --tokens 6e5 \
  --test 200-300,r150-500
stage s5 s3 --seed 4 "${rows800[@]}" --repeats 0.05 --muon 2e-3 --lr 4e-4 --warmup 10 --decay 1 --tokens 8e5 \
  --test 200-300,r150-500
# A fifth layer, whose heads learn to look at gold sentences; rows of 1,280 and 2,688 tokens.
low=(--muon 1.5e-3 --lr 3e-4 --warmup 10)
stage c1 s5 --seed 5 --grow 1 --look 4 --length 1280 --batch 2 --words 120-760 --repeats 0.05 --mix 0.4,0.5,0.1 \
  --span 2700 "${low[@]}" --tokens 9.4e5 --test 400-550
rows2688=(--length 2688 --batch 1 --words 300-1780 --look 4)
stage c2 c1 --seed 6 "${rows2688[@]}" --repeats 0.04 --mix 0.4,0.5,0.1 "${low[@]}" --tokens 8e5 --test 1450-1700
# The device model: back to short rows, most of them of refined documents.
short=(--words 80-460 --refined 0.6 --refined-words 120-500 --repeats 0.04 --mix 0.35,0.6,0.05 --test r150-500)
stage d1 c2 --seed 7 "${short[@]}" --length 800 --batch 3 "${low[@]}" --decay 0.8 --tokens 1.43e6
# The cloud model: a sixth layer.
stage c3 c2 --seed 10 --grow 1 "${rows2688[@]}" --repeats 0.03 --mix 0.4,0.55,0.05 "${low[@]}" --decay 0.8 \
  --tokens 1.47e6 --test 1450-1700
# The device model with the other tokenizer.
tokenizer=tok-b
stage b1 d1 --seed 8 --old-tokenizer "$work/tok-a.json" "${short[@]}" --length 960 --batch 2 --muon 1.5e-3 --lr 6e-4 \
  --warmup 10 --decay 0.8 --tokens 5.6e5

python3 export.py "$work/c3.pt" "$work/tok-a.json" demo-cloud.gguf "baton demo cloud"
python3 export.py "$work/d1.pt" "$work/tok-a.json" demo-device.gguf "baton demo device"
python3 export.py "$work/b1.pt" "$work/tok-b.json" demo-device-b.gguf "baton demo device b"
"$here/../target/release/baton-cloud" calibrate demo-cloud.gguf
