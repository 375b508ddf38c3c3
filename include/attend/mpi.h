// A Group whose ranks are processes of MPI (MPI 3 or newer), for <attend/distributed.h>:
//
//   MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
//   {
//     attend::mpi::Group group(MPI_COMM_WORLD);
//     attend::distributed::attention(group, layouts, q, k, v, out, {.causal = true});
//   }
//   MPI_Finalize();
//
// It is in the library attend_mpi (CMake: find_package(attend COMPONENTS mpi), attend::mpi), which
// is built for one MPI. docs/distributed.md says how it is run.
#pragma once

#include <attend/distributed.h>

#include <mpi.h>

namespace attend::mpi {

struct GroupOptions {
  // How long the constructor waits for the other ranks, in all.
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
  // The bytes of one message at most: MPI counts them by an int. What is larger goes in pieces. The
  // smallest of all ranks' counts.
  std::int64_t piece = std::int64_t{1} << 30;
};

// The ranks of a communicator, as MPI numbers them. All of them make their Group together; it has a
// communicator of its own, a duplicate, so no message of it meets one of the caller's.
//
// MPI is called by the thread that uses the Group alone, so MPI_THREAD_FUNNELED is enough, and then
// that is the main thread. Nothing here waits inside of MPI: transfers are started and polled.
//
// What MPI reports is thrown as PeerError. Once the Group has failed, here or in the library, or a
// transfer was given up before it was done, it never calls MPI again: the only sound call is then
// abort(), as MPI_Finalize would wait for the rank that is lost. Memory of transfers that were
// given up is kept until the process ends, and so is the communicator.
class ATTEND_API Group final : public distributed::Group {
 public:
  explicit Group(MPI_Comm communicator, const GroupOptions& options = {});
  ~Group() override;

  int rank() const noexcept override;
  int size() const noexcept override;
  std::unique_ptr<distributed::Pending> exchange(
      std::span<const std::span<const std::byte>> send,
      std::span<const std::span<std::byte>> receive) override;
  std::unique_ptr<distributed::Pending> broadcast(int root, std::span<std::byte> bytes) override;

  // Ends all processes of the communicator, in practice all of the job, with that status: what a
  // program does about a PeerError.
  [[noreturn]] void abort(int status = 1) const;

 private:
  struct State;
  class Transfer;
  std::unique_ptr<Transfer> begin();
  // Shared with the transfers: one may outlive the Group.
  std::shared_ptr<State> state_;
};

}  // namespace attend::mpi
