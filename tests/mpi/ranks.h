// What the programs that run under mpirun share: MPI around GoogleTest, and bytes that tell where
// they come from.
#pragma once

#include <attend/mpi.h>

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace attend {

inline constexpr std::chrono::milliseconds kLong = std::chrono::minutes(2);

// Every rank runs the same tests in the same order. One that fails ends the job with a status.
inline int run_ranks(int argc, char** argv) {
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
  testing::InitGoogleTest(&argc, argv);
  const int failed = RUN_ALL_TESTS();
  MPI_Finalize();
  return failed;
}

using Bytes = std::vector<std::byte>;

// The bytes of the nth message between two ranks.
inline Bytes message(int from, int to, int n, std::size_t size) {
  Bytes bytes(size);
  auto state = static_cast<std::uint32_t>(from * 7919 + to * 104729 + n * 1299709 + 1);
  for (std::byte& byte : bytes) {
    state = state * 1664525U + 1013904223U;
    byte = static_cast<std::byte>(state >> 24);
  }
  return bytes;
}

}  // namespace attend
