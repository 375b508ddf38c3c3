#!/usr/bin/env bash
# Builds the sweeps of tests/soak and nothing else, and runs all of them at the same time, on an x86-64 machine that has
# a compiler and CMake but no network. What it lacks comes from build/carry (tools/bench_offline.sh carry, with a network).
#
#   tools/sweeps_offline.sh [SECONDS [KERNELS]]      180 seconds of each; avx512,avx2,generic,reference
#
# Logs go to $OUT, or build/sweeps/out. Three processes a sweep, each with a seed of its own: for 16 cores. It ends with
# a line for each process, and fails if one of them did, or if one of the kernels did not run.
set -uo pipefail
cd -P "$(dirname "${BASH_SOURCE[0]}")/.."
seconds=${1:-180} kernels=${2:-avx512,avx2,generic,reference} tree=$PWD/build/sweeps
out=${OUT:-$tree/out} sweeps=(differential extremes nan_placement faults)
mkdir -p "$out"
grep -m 1 'model name' /proc/cpuinfo
g++ --version | head -n 1

cmake -S . -B "$tree" $(command -v ninja >/dev/null && echo -G Ninja) -DCMAKE_BUILD_TYPE=Release \
  -DCMAKE_PREFIX_PATH="$PWD/build/carry/usr" -DATTEND_BUILD_TESTS=ON >"$out/configure.log" 2>&1 ||
  { tail -n 20 "$out/configure.log"; exit 1; }
cmake --build "$tree" -j "$(nproc)" --target sweeps >"$out/build.log" 2>&1 || { tail -n 20 "$out/build.log"; exit 1; }
printf 'built in %d s\n' "$SECONDS"

declare -A running
for sweep in "${sweeps[@]}"; do
  for seed in 1 2 3; do
    chosen=(--kernels "$kernels")
    [[ $sweep != faults ]] || chosen=()   # whatever the planner chooses
    "$tree/tests/sweep_$sweep" --seconds "$seconds" --seed $seed "${chosen[@]}" >"$out/$sweep.$seed.log" 2>&1 &
    running[$sweep.$seed]=$!
  done
done
status=0
for name in "${!running[@]}"; do
  wait "${running[$name]}" || { status=1 && grep -hE 'FAILED|CRASHED|nothing that fits' "$out/$name.log" | head -n 5; }
done
grep -hE ' cases in ' "$out"/*.log | sort
cat "$out"/*.log | awk '$1 ~ /^(cpu|reference)\./ && NF == 2 { runs[$1] += $2 } END { for (k in runs) print "  " k, runs[k] }' | sort
exit $status
