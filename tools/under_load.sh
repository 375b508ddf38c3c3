#!/usr/bin/env bash
# Does a test depend on how fast the machine is? Runs tests again and again while, beside them, as many
# builds of the library go on as there are cores.
#
#   tools/under_load.sh [--slots N] [--parts N] [--tree FOLDER] [RUNS [ARGUMENTS...]]
#
# RUNS (10) runs of what ./run test runs, or of the tests that ARGUMENTS of ctest name (-R parallel), in
# FOLDER (build/release), where they are built already. N slots share the cores and the runs between them,
# each with its own builds and with a copy of FOLDER in its place, since tests write there: this needs root,
# for the mounts. Two cores for each of eight runs at a time, on 16: --slots 8. Where there are fewer runs
# than slots, --parts cuts each into every Nth test. What ctest says is in build/load; at the end there is a
# line for each run. A run that fails, or beside which a build failed, makes the exit status 1.
set -euo pipefail
cd -P "$(dirname "${BASH_SOURCE[0]}")/.."
slots=1 parts=1 tree=build/release slot=
while [[ ${1-} == --* ]]; do
  case $1 in
    --slots) slots=$2 ;;
    --parts) parts=$2 ;;
    --tree) tree=$2 ;;
    --slot) slot=$2 ;;   # this process is one of them
    *) echo "under_load: there is no option $1" >&2; exit 2 ;;
  esac
  shift 2
done
runs=${1:-10}
shift || true
(($# > 0)) || set -- -LE 'soak|^ci$'
set -m   # each job is a group of processes, which ends with this one
trap 'kill -- $(jobs -p | sed s/^/-/) 2>/dev/null || true' EXIT

cached() { sed -n "s|^$1:[A-Z]*=||p" "$tree/CMakeCache.txt"; }

# build_for_ever FOLDER: as the tests were built, but without ccache, with which each would end at once.
build_for_ever() {
  cmake -S . -B "$1" -G "$(cached CMAKE_GENERATOR)" -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_CXX_COMPILER="$(cached CMAKE_CXX_COMPILER)" -DCMAKE_PREFIX_PATH="$(cached CMAKE_PREFIX_PATH)" \
    -DCMAKE_CXX_COMPILER_LAUNCHER= -DATTEND_BUILD_TESTS=OFF
  while cmake --build "$1" --clean-first -j 1 --target attend; do :; done
}

compiled() { cat "$folder"/build*.log 2>/dev/null | grep -c Building || true; }

# run_tests RUN PART: with its line of the table, which ends in what the builds compiled meanwhile.
run_tests() {
  local log=$folder/run$1.$2.log before status=0
  before=$(compiled)
  ctest --test-dir "$tree" --output-on-failure --no-tests=error -j "$cores" -I "$2,,$parts" "${@:3}" >"$log" 2>&1 &
  wait $! || status=1
  (($(jobs -pr | wc -l) == cores)) || { echo "under_load: a build failed: $folder/build*.log" >&2 && status=1; }
  [[ $(<"$log") =~ tests\ passed(,\ ([0-9]+)\ tests\ failed)?\ out\ of\ ([0-9]+) ]] || status=1
  printf '%4s %4s %4s %6s %6s %8s %9s\n' "$slot" "$1" "$2" "${BASH_REMATCH[3]:-0}" "${BASH_REMATCH[2]:-0}" \
    "$(sed -nE 's/^Total Test time.*= *([0-9]+).*/\1/p' "$log")" $(($(compiled) - before)) | tee -a build/load/table
  sed -n '/^The following tests FAILED/,$p' "$log" | sed "s/^/slot $slot, run $1.$2: /"
  return $status
}

# Whichever runs no other slot has taken yet.
run_slot() {
  local n part status=0
  folder=build/load/$slot cores=$(nproc)
  mkdir -p "$folder"
  for ((n = 1; n <= cores; ++n)); do build_for_ever "$folder/build$n" >"$folder/build$n.log" 2>&1 & done
  for ((n = 1; n <= runs; ++n)); do
    for ((part = 1; part <= parts; ++part)); do
      ! mkdir "build/load/run$n.$part" 2>/dev/null || run_tests "$n" "$part" "$@" || status=1
    done
  done
  return $status
}

if [[ $slot ]]; then
  cp -a "$tree" "build/load/tree$slot"
  mount --bind "build/load/tree$slot" "$tree"
  run_slot "$@"
  exit
fi

rm -rf build/load
mkdir -p build/load
: >build/load/table
status=0
if ((slots == 1)); then
  slot=1
  run_slot "$@" || status=1
else
  mapfile -t cores < <(python3 -c 'import os; print(*sorted(os.sched_getaffinity(0)), sep="\n")')
  each=$((${#cores[@]} / slots))
  for ((n = 0; n < slots; ++n)); do
    printf -v mine '%s,' "${cores[@]:n * each:each}"
    taskset -c "${mine%,}" unshare --mount "$0" --parts "$parts" --tree "$tree" --slot $((n + 1)) "$runs" "$@" &
  done
  for job in $(jobs -p); do wait "$job" || status=1; done
fi
echo "== slot, run, part, tests, failed, seconds, files compiled beside them"
sort -nk2,2 -nk3,3 build/load/table
exit $status
