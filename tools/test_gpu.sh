#!/usr/bin/env bash
# Builds attend on a machine with an NVIDIA GPU, nvcc and CMake, and asks of the GPU's kernels what the tests ask of the
# CPU's: the table of cases as it is and with d of 64, 96, 128 and 256, pairs of options, tests/cuda_test.cpp and
# tests/inspect_test.cpp.
#
#   tools/test_gpu.sh [sanitize]     sanitize: then a part of it again under compute-sanitizer
#
# GoogleTest and nlohmann-json must be there; where they are not installed, CMAKE_PREFIX_PATH says where they are (as
# build/carry/usr of tools/bench_offline.sh). Results go to $OUT, or build/gpu/out: a line a step, and the whole as gpu.json.
set -uo pipefail
cd -P "$(dirname "${BASH_SOURCE[0]}")/.."
tree=$PWD/build/gpu out=${OUT:-$PWD/build/gpu/out} shards=$(nproc)
[[ $# == 0 || $* == sanitize ]] || { sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 2; }
if ! nvidia-smi -L >/dev/null 2>&1; then
  echo "skipped: nvidia-smi finds no GPU on this machine"
  exit 0
fi
mkdir -p "$out"
failed=0
say() { printf '== [%d:%02d] %s\n' $((SECONDS / 60)) $((SECONDS % 60)) "$*"; }

# attempt NAME COMMAND...: its output goes to NAME.log.
attempt() {
  local name=$1 status
  shift
  "$@" >"$out/$name.log" 2>&1
  status=$?
  say "$name: $([[ $status == 0 ]] && echo passed || echo "FAILED ($status): $out/$name.log")"
  [[ $status == 0 ]] || failed=1
  return $status
}

build() {
  cmake -S . -B "$tree" $(command -v ninja >/dev/null && echo -G Ninja) -DCMAKE_BUILD_TYPE=Release -DATTEND_CUDA=ON \
    -DATTEND_BUILD_TESTS=ON -DATTEND_BUILD_COMMAND=OFF -DATTEND_BUILD_EXAMPLES=OFF &&
    cmake --build "$tree" -j "$shards" --target conformance_test pairs_test cuda_test inspect_test
}

# in_shards PROGRAM ARGUMENTS...: divided among processes, which share the GPU.
in_shards() {
  local program=$tree/tests/$1 n status=0 running=()
  shift
  for ((n = 0; n < shards; ++n)); do
    GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$n "$program" --gtest_brief=1 "$@" &
    running+=($!)
  done
  for n in "${running[@]}"; do wait "$n" || status=1; done
  return $status
}

table() { in_shards conformance_test --only=cuda. "$@"; }

# What every run of the table said, added up.
summary() {
  python3 - "$out" <<'EOF'
import json, pathlib, re, subprocess, sys
out, found = pathlib.Path(sys.argv[1]), {}
line = re.compile(r"^  (cuda\.\S+) (\S+)\s+(\d+) runs, (\d+) declined, largest error ([\d.]+)", re.M)
for log in sorted(out.glob("table_*.log")):
    text, rows = log.read_text(), {}
    for kernel, type_, runs, declined, error in line.findall(text):
        row = rows.setdefault(f"{kernel} {type_}", {"runs": 0, "declined": 0, "largest_error": 0.0})
        row["runs"] += int(runs)
        row["declined"] += int(declined)
        row["largest_error"] = max(row["largest_error"], float(error))
    found[log.stem] = {"wrong": text.count("reproduce:"), "kernels": rows}
gpu = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], text=True,
                     capture_output=True).stdout.strip()
(out / "gpu.json").write_text(json.dumps({"gpu": gpu, "tables": found}, indent=1) + "\n")
for name, table in found.items():
    print(f"{name}: {sum(r['runs'] for r in table['kernels'].values())} runs, {table['wrong']} wrong")
EOF
}

sanitize() {
  local tool=$1
  shift
  compute-sanitizer --tool "$tool" --error-exitcode 1 "$@"
}

nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
attempt build build || { tail -n 30 "$out/build.log"; exit 1; }
attempt cuda_test "$tree/tests/cuda_test" --gtest_brief=1
attempt inspect_test "$tree/tests/inspect_test" --gtest_brief=1 --gtest_filter='*cuda*:*gpu*'
attempt table_as_it_is table
attempt table_d64 table --d=64
for d in 96 128 256; do attempt "table_d$d" table --reduced "--d=$d"; done
attempt option_pairs in_shards pairs_test
if [[ ${1-} == sanitize ]]; then
  attempt memcheck_cuda_test sanitize memcheck "$tree/tests/cuda_test" --gtest_brief=1
  attempt memcheck_table sanitize memcheck "$tree/tests/conformance_test" --only=cuda. --reduced --d=64 \
    --gtest_filter='*bf16_3:*f16_5'
  attempt racecheck_table sanitize racecheck "$tree/tests/conformance_test" --only=cuda.portable. --reduced \
    --gtest_filter='*f32_5'
  attempt initcheck_table sanitize initcheck "$tree/tests/conformance_test" --only=cuda. --reduced \
    --gtest_filter='*f32_6'
fi
summary
exit $failed
