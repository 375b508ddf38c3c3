#!/bin/sh
# Runs the tests labelled cross in FOLDER, a build for another architecture, in that build's emulator.
#
#   cross.sh FOLDER [CTEST]      exit: 77 skipped, else that of ctest
#
# FOLDER is named after its preset. It is there when `./run test` found or could install the cross
# compiler, the emulator and GoogleTest's source.
folder=$1
if ! [ -x "$folder/tests/conformance_test" ]; then
  echo "skipped: no tests in $folder; with its compiler and emulator: ./run build $(basename "$folder")"
  exit 77
fi
exec "${2:-ctest}" --test-dir "$folder" -L cross --no-tests=error --output-on-failure -j 2
