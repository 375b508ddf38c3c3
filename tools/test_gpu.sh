#!/usr/bin/env bash
# Builds attend on a machine with an NVIDIA GPU, nvcc and CMake, and asks of the GPU's kernels what the tests ask of the
# CPU's; then measures them.
#
#   tools/test_gpu.sh [STEP...]   none: all of them
#
#   cases      the table of cases as it is and with d of 64, 96, 128 and 256, pairs of options, tests/cuda_test.cpp,
#              tests/cuda_layers_test.cpp and tests/inspect_test.cpp
#   properties properties, traps and gradients by differences, of each kernel (ATTEND_ONLY of tests/support/call_memory.h);
#              bad input and large sizes (tests/cuda_errors_test.cpp), drivers that are none (tests/cuda_driver_test.cpp,
#              tests/cuda_launch_test.cpp)
#   python     the package on tensors of the GPU (python/tests/cuda): attend.torch, attend.hf, the cases of ONNX
#   bench      beside PyTorch's cuDNN and flash backends (bench/gpu.py)
#   sanitize   tests/cuda_test.cpp, tests/cuda_layers_test.cpp and a part of the table under compute-sanitizer, pages and
#              keys of 8 bits among them; skipped, in words, where that tool is not there
#   options    a part of cases and of sanitize for what Hopper's kernels do with options of scores and weights, with one query
#              and keys of 8 bits
#
# GoogleTest and nlohmann-json must be there; where they are not installed, CMAKE_PREFIX_PATH says where they are (as
# build/carry/usr of tools/bench_offline.sh). python and bench want a Python with PyTorch (PYTHON, or python3), and nanobind,
# ml_dtypes, pytest and for its cases onnx: its own, or build/carry/wheels. Results go to $OUT, or build/gpu/out: what each
# step wrote, and gpu.json, renewed after each of them: what every step found and what bench measured. Its copy as
# bench/results/NAME.json becomes, by bench/report.py, a part of docs/performance.md. TREE: where to build, if not in build/gpu.
# SUITES: which of bench, if not all.
# GOES_ON=1: other steps have run before, into the same OUT; gpu.json holds them all.
set -uo pipefail
cd -P "$(dirname "${BASH_SOURCE[0]}")/.."
tree=${TREE:-$PWD/build/gpu}
out=${OUT:-$tree/out} shards=$(nproc) python=${PYTHON:-python3}
for step in "$@"; do
  [[ " cases properties python bench sanitize options " == *" $step "* ]] || { sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"; exit 2; }
done
steps=" ${*:-cases properties python bench sanitize} "
wants() { [[ $steps == *" $1 "* ]]; }
if ! nvidia-smi -L >/dev/null 2>&1; then
  echo "skipped: nvidia-smi finds no GPU on this machine"
  exit 0
fi
[[ -n ${GOES_ON:-} ]] || rm -f "$out/steps.txt" "$tree/bench.json"
mkdir -p "$out" || exit
failed=0
say() { printf '== [%d:%02d] %s\n' $((SECONDS / 60)) $((SECONDS % 60)) "$*"; }

# attempt NAME COMMAND...: its output goes to NAME.log, and what it found into gpu.json.
attempt() {
  local name=$1 status begun=$SECONDS
  shift
  "$@" >"$out/$name.log" 2>&1
  status=$?
  say "$name: $([[ $status == 0 ]] && echo passed || echo "FAILED ($status): $out/$name.log")"
  [[ $status == 0 ]] || failed=1
  echo "$name $status $((SECONDS - begun))" >>"$out/steps.txt"
  python3 tools/gpu_summary.py "$out" "$tree/bench.json" >"$tree/summary.txt" || failed=1
  return $status
}

# configure NAME=VALUE...
configure() {
  cmake -S . -B "$tree" $(command -v ninja >/dev/null && echo -G Ninja) -DCMAKE_BUILD_TYPE=Release -DATTEND_CUDA=ON \
    -DATTEND_BUILD_COMMAND=OFF -DATTEND_BUILD_EXAMPLES=OFF "${@/#/-D}"
}
build() {
  local options=() targets=()
  if wants cases || wants sanitize || wants options; then
    options+=(ATTEND_BUILD_TESTS=ON) targets+=(conformance_test pairs_test cuda_test cuda_layers_test inspect_test)
  fi
  if wants properties; then options+=(ATTEND_BUILD_TESTS=ON) targets+=(gpu_tests); fi
  if wants python || wants bench; then
    if ! "$python" -c 'import nanobind, ml_dtypes, pytest' 2>/dev/null; then
      PYTHON=$python tools/bench_offline.sh environment || return
      python=$PWD/build/offline/venv/bin/python
    fi
    options+=(ATTEND_BUILD_PYTHON=ON Python_EXECUTABLE="$python") targets+=(attend_python)
  fi
  configure "${options[@]}" && cmake --build "$tree" -j "$shards" --target "${targets[@]}"
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

# Each program of the properties, traps and gradients in parts, for the kernels of Hopper and for the portable ones; then
# what they said, with the number of cases that a kernel took. A few processes at once: they make thousands of short calls,
# and wait for each other's turn at the GPU.
properties() {
  local folder=$tree/properties parts=8 processes=$(((shards + 3) / 4)) name only n status=0
  rm -rf "$folder" && mkdir -p "$folder" || return
  for name in gradient traps_{meaning,cache,extremes,hidden,layout,sizes,threads} \
              properties_{rows,extreme,nan_place,parts,memory,merge,algebra,hidden,values}; do
    for only in cuda.sm90. cuda.portable.; do
      for ((n = 0; n < parts; ++n)); do echo "$name $only $n"; done
    done
  done | xargs -P "$processes" -L 1 bash -c 'GTEST_TOTAL_SHARDS=$2 GTEST_SHARD_INDEX=$5 ATTEND_ONLY=$4 "$0/tests/$3_test" \
    >"$1/$3.$4$5" 2>&1' "$tree" "$folder" "$parts" || status=1
  for name in "$folder"/*; do
    printf -- '-- %s\n' "${name##*/}"
    grep -v '^\[ RUN\|^\[---\|^\[===\|^$\|^Running main\|^Note: ' "$name"
  done
  return $status
}

table() { in_shards conformance_test --only=cuda. "$@"; }

# sanitize TOOL PROGRAM ARGUMENTS...
sanitize() {
  local tool=$1 program=$2
  shift 2
  timeout "${SANITIZE_SECONDS:-900}" compute-sanitizer --tool "$tool" --error-exitcode 1 "$tree/tests/$program" "$@"
}
# Of every program something; the tools are slow, so of most of them a part. racecheck knows the barriers of the portable
# kernels alone (src/cuda/README.md says how Hopper's are asked). None of them runs longer than SANITIZE_SECONDS.
sanitizers() {
  local pages='*CudaCache.pages*bf16_d128:*CudaCache.token_by_token_of*bf16_d64:*CudaCache.*f32*'
  local layers='*CudaLayers*bf16:*CudaLayers*f32:-*same_bits_among_any_number*:*products_of_every*'
  attempt memcheck_cuda_test sanitize memcheck cuda_test
  attempt memcheck_layers sanitize memcheck cuda_layers_test --gtest_filter="$layers"
  attempt memcheck_table sanitize memcheck conformance_test --only=cuda. --reduced --d=64 --gtest_filter='*bf16_3:*f16_5'
  attempt racecheck_layers sanitize racecheck cuda_layers_test --gtest_filter='*CudaLayers.norms/f32:*CudaLayers.blocks/f32'
  attempt racecheck_table sanitize racecheck conformance_test --only=cuda.portable. --reduced --gtest_filter='*f32_5'
  attempt synccheck_pages sanitize synccheck cuda_test --gtest_filter="$pages"
  attempt initcheck_pages sanitize initcheck cuda_test --gtest_filter="$pages"
  attempt initcheck_layers sanitize initcheck cuda_layers_test --gtest_filter="$layers"
  attempt initcheck_table sanitize initcheck conformance_test --only=cuda. --reduced --gtest_filter='*f32_6'
}

# All at once: each is slow by itself, and leaves most of the machine idle.
sanitizers_of_options() {
  local tool one running=() status=0 decode='*eight_bits*bf16_d128:*token_by_token_of*bf16_d64:*when_it_comes_by_itself*bf16_d256'
  for tool in memcheck synccheck initcheck; do
    attempt "${tool}_options" sanitize "$tool" conformance_test --only=cuda.sm90.forward --reduced --d=128 --gtest_filter='*bf16_1' & running+=($!)
    attempt "${tool}_options_bits" sanitize "$tool" cuda_test --gtest_filter='*with_options*bf16_d64:*with_options*bf16_d256' & running+=($!)
    attempt "${tool}_decode" sanitize "$tool" cuda_test --gtest_filter="$decode" & running+=($!)
  done
  for one in "${running[@]}"; do wait "$one" || status=1; done
  return $status
}

nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
attempt build build || { tail -n 30 "$out/build.log"; exit 1; }
export PYTHONPATH=$tree/python PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
if wants bench; then attempt bench "$python" bench/gpu.py --json "$tree/bench.json" ${SUITES:+--suites $SUITES}; fi

# Nothing is measured here, so these share the machine: the tests of one wait for the host while those of others run.
of_python() {
  attempt python "$python" -m pytest -q -p no:cacheprovider -rs --durations=5 python/tests/cuda
  tail -n 1 "$out/python.log"
}
of_properties() {
  attempt cuda_driver_test "$tree/tests/cuda_driver_test" --gtest_brief=1
  attempt cuda_launch_test "$tree/tests/cuda_launch_test" --gtest_brief=1
  attempt cuda_errors_test "$tree/tests/cuda_errors_test"
  attempt properties properties
}
of_cases() {
  attempt cuda_test "$tree/tests/cuda_test" --gtest_brief=1
  attempt cuda_layers_test "$tree/tests/cuda_layers_test" --gtest_brief=1
  attempt inspect_test "$tree/tests/inspect_test" --gtest_brief=1 --gtest_filter='*cuda*:*gpu*'
  attempt table_as_it_is table
  attempt table_d64 table --d=64
  for d in 96 128 256; do attempt "table_d$d" table --reduced "--d=$d"; done
  attempt option_pairs in_shards pairs_test
}
of_options() {
  attempt cuda_test in_shards cuda_test
  for d in 64 128 256; do attempt "table_sm90_d$d" in_shards conformance_test --only=cuda.sm90. --reduced "--d=$d"; done
  attempt option_pairs in_shards pairs_test
}
running=()
for step in python properties cases options; do
  if wants $step; then (of_$step; exit $failed) & running+=($!); fi
done
for one in "${running[@]}"; do wait "$one" || failed=1; done
if wants sanitize; then
  if command -v compute-sanitizer >/dev/null; then sanitizers; else say "sanitize: skipped, there is no compute-sanitizer"; fi
fi
if wants options && command -v compute-sanitizer >/dev/null; then sanitizers_of_options || failed=1; fi
python3 tools/gpu_summary.py "$out" "$tree/bench.json" >"$tree/summary.txt" || failed=1
cat "$tree/summary.txt"
exit $failed
