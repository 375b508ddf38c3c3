#!/usr/bin/env bash
# Does a test depend on how fast the machine is? Runs tests again and again while, beside them, as many
# builds of the library go on as there are cores.
#
#   tools/under_load.sh [RUNS [ARGUMENTS...]]   10 runs of what ./run test runs, or of the tests that
#                                               ARGUMENTS of ctest name (-R parallel)
#
# The tests are those of build/release, where ./run test has built them. The first run that fails is the
# last, and gives its exit status.
set -euo pipefail
cd -P "$(dirname "${BASH_SOURCE[0]}")/.."
runs=${1:-10}
shift || true
(($# > 0)) || set -- -LE 'soak|^ci$'
cores=$(nproc)

# Builds and builds, in a folder of its own; with ccache each would end at once.
build_for_ever() {
  cmake --preset release -B "build/load$1" -DATTEND_BUILD_TESTS=OFF -DCMAKE_CXX_COMPILER_LAUNCHER= >/dev/null
  while true; do cmake --build "build/load$1" --clean-first -j 1 --target attend >/dev/null; done
}

set -m   # each build is a group of processes, which ends with this one
trap 'kill -- $(jobs -p | sed s/^/-/)' EXIT
for ((n = 1; n <= cores; ++n)); do build_for_ever "$n" & done
for ((n = 1; n <= runs; ++n)); do
  echo "== run $n of $runs"
  ctest --test-dir build/release --output-on-failure --no-tests=error -j "$cores" "$@"
done
