#!/usr/bin/env bash
# Runs parts of `./run test --soak` on an x86-64 machine with many processors that has a compiler and CMake but no network:
# asan, tsan, tidy and mutants together took a quarter of an hour on 16 of them.
#
#   tools/soak_offline.sh carry            with a network, on Debian 12: fills build/soak_carry, which travels with the tree
#   tools/soak_offline.sh begin PART...    there, as root: installs what travelled and starts the parts, beside each other
#   tools/soak_offline.sh wait SECONDS     there: until they have ended, or so long; logs and docs/soak.md go to $OUT
#
# The lines of docs/soak.md that come back are for the same sources here: a part is named by what it reads. The parts run
# in a copy of the tree (TREE, or build/soak_tree), outside the caller's session, so that they outlive a command.
set -uo pipefail
cd -P "$(dirname "${BASH_SOURCE[0]}")/.."
carry=$PWD/build/soak_carry tree=${TREE:-$PWD/build/soak_tree} out=${OUT:-$PWD/build/soak}
packages=(nlohmann-json3-dev libcli11-dev libbenchmark-dev libbenchmark1debian libgtest-dev libgmock-dev zlib1g-dev
  pkgconf pkgconf-bin libpkgconf3 clang clang-14 clang-tidy clang-tidy-14 libclang-cpp14 libclang-common-14-dev libllvm14
  libedit2 libbsd0 libmd0 libstdc++-12-dev libgcc-12-dev)
libraries=/usr/lib/x86_64-linux-gnu compilers=/usr/lib/gcc/x86_64-linux-gnu

fill() {
  rm -rf "$carry" && mkdir -p "$carry" && cd "$carry" && apt-get download -q "${packages[@]}" && du -sh "$carry"
}

# stand_in LIBRARY: where it is missing, one with the functions that LLVM names and does not call here.
stand_in() {
  ldconfig -p | grep -qF "$1" && return
  nm -D --undefined-only "$libraries/libLLVM-14.so.1" | sed -n 's/.* \(\(Z3_\|xml\)[A-Za-z0-9_]*\).*/void \1(void) { __builtin_trap(); }/p' |
    gcc -shared -fPIC -w -x c - -Wl,-soname,"$1" -o "$libraries/$1"
}

install_packages() {
  local package
  for package in "$carry"/*.deb; do
    dpkg-deb --fsys-tarfile "$package" | tar -x -C / --keep-directory-symlink --no-same-owner || return
  done
  ln -sf libz.so.1 "$libraries/libz.so"   # the version that is there
  stand_in libz3.so.4 && stand_in libxml2.so.2 && ldconfig || return
  # What a newer g++ warns of is shown, and stops nothing. Without the limit tsan finds no room.
  printf '#!/bin/sh\nexec /usr/bin/g++ "$@" -Wno-error\n' >/usr/local/bin/g++ && chmod +x /usr/local/bin/g++
  sysctl -qw vm.mmap_rnd_bits=28 || true
}

# A copy that git knows, since parts are named by git's files; and a Python that has all that these parts' tests want of it.
copy_tree() {
  local modules=$tree/build/modules headers
  rm -rf "$tree" && mkdir -p "$tree" && git ls-files -z --cached --others --exclude-standard 2>/dev/null >"$tree.files"
  if [[ -s $tree.files ]]; then xargs -0 cp --parents -t "$tree" <"$tree.files"
  else tar -c --exclude=./build . | tar -x -C "$tree"
  fi
  cd "$tree" || return
  git init -q && git add -A && git -c user.name=soak -c user.email=soak@localhost commit -qm soak || return
  mkdir -p build/venv/bin "$modules/pip" && touch "$modules/pip/__init__.py" "$modules/pip/__main__.py"
  ln -sf "$(command -v python3)" build/venv/bin/python
  grep -v '^#' python/requirements-test.txt >build/venv/installed
  python3 -c 'import ensurepip' 2>/dev/null || touch "$modules/ensurepip.py"
  headers=$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))')
  [[ -e $headers/Python.h ]] || { mkdir -p "$headers" && touch "$headers/Python.h"; }
  export PYTHONPATH=$modules
}

begin() {
  local part newer
  install_packages && copy_tree || return
  rm -f "$tree".*.{log,done}
  for part in "$@"; do
    # clang 14 takes the newest of g++'s folders, whose headers it cannot read: for it, that of 12 is the only one.
    newer=
    [[ $part != tidy && $part != clang ]] || newer="for f in $compilers/1[3-9]; do mount -t tmpfs none \$f; done;"
    setsid unshare -m bash -c "$newer ./run test --soak=$part; echo \"$part ended with \$?\"; touch $tree.$part.done" \
      </dev/null >"$tree.$part.log" 2>&1 &
  done
}

await() {
  local end=$((SECONDS + $1)) log part left=1
  while ((SECONDS < end && left > 0)); do
    left=0
    for log in "$tree".*.log; do [[ -e ${log%.log}.done ]] || left=$((left + 1)); done
    ((left == 0)) || sleep 3
  done
  mkdir -p "$out"
  for log in "$tree".*.log; do
    part=${log#"$tree".}
    cp "$log" "$out/$part"
    echo "-- ${part%.log}" && tail -n 4 "$log" | cut -c 1-200
  done
  cp "$tree/docs/soak.md" "$out/soak.md" && grep "^| .* | x86_64 |" "$out/soak.md"
}

case ${1-} in
  carry) fill ;;
  begin) shift && begin "$@" ;;
  wait) await "${2:?seconds}" ;;
  *) sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"; exit 2 ;;
esac
