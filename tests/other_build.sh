#!/bin/sh
# Builds TARGET in FOLDER, another build of the same sources, and runs the tests that ctest is told to.
#
#   other_build.sh CMAKE CTEST FOLDER TARGET ARGUMENTS...      exit: 77 skipped, else that of ctest
#
# FOLDER is named after its preset. It is there when `./run test --ci` found or could install the tools.
cmake=$1 ctest=$2 folder=$3 target=$4
shift 4
if ! [ -e "$folder/build.ninja" ]; then
  echo "skipped: no $folder; with the tools for it: ./run build $(basename "$folder")"
  exit 77
fi
"$cmake" --build "$folder" --target "$target" || exit 1
exec "$ctest" --test-dir "$folder" --no-tests=error --output-on-failure -j 2 "$@"
