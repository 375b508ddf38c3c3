#!/usr/bin/env bash
# A layer from the shell: make one, use it, look at its steps.
#   examples/command.sh [PATH_OF_ATTEND]
set -euo pipefail
attend=$(realpath "$(command -v "${1:-attend}")")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

# What eight heads of a layer of width 512 cost, beside one.
"$attend" info --model-dim 512 --heads 8 --batch 32 --length 20

# A layer drawn from a seed, on an input drawn from the same; the weights are kept.
"$attend" apply --model-dim 64 --heads 4 --length 10 --seed 7 --causal \
  --save-layer layer.safetensors --output y.npy --trace steps.safetensors

# The kept layer on a step of that run: a tensor of a file is FILE:NAME.
"$attend" apply --weights layer.safetensors --input steps.safetensors:concat --output again.npy

# Attention alone, on the heads of the trace. It is what the layer computed there.
"$attend" apply --q steps.safetensors:q_heads --k steps.safetensors:k_heads \
  --v steps.safetensors:v_heads --causal --output heads.safetensors:heads --json >summary.json
python3 - <<'PYTHON'
import json

output = json.load(open("summary.json"))["output"]
assert output["shape"] == [1, 4, 10, 16], output
print("heads", output["shape"], "checksum", output["checksum"])
PYTHON

# Every kernel against the formulas, on this machine.
"$attend" check --reduced --type f32
