// A call during which something happens to one rank. Run by faults_test.py under mpirun:
//
//   faults FOLDER SCHEME FAULT TRANSFER TIMEOUT
//
// Attention and its gradient. Before its transfer of that number rank 1 is killed, is stopped,
// throws, or, `slow`, is late with every transfer. FAULT `none` prints how many transfers there
// are. Ranks note their process numbers in the folder, and the PeerError that they got; when all
// that are left have, they end the job.
#include "ranks.h"
#include "support/property_compare.h"

#include <signal.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <thread>

namespace attend {
namespace {

using distributed::Layout;
using distributed::Pending;
using distributed::Scheme;

// Another Group, and what happens before each of its transfers.
class Watched final : public distributed::Group {
 public:
  Watched(distributed::Group& inner, std::function<void(int)> before)
      : inner_(inner), before_(std::move(before)) {}
  int rank() const noexcept override { return inner_.rank(); }
  int size() const noexcept override { return inner_.size(); }
  std::unique_ptr<Pending> exchange(std::span<const std::span<const std::byte>> send,
                                    std::span<const std::span<std::byte>> receive) override {
    before_(transfers++);
    return inner_.exchange(send, receive);
  }
  std::unique_ptr<Pending> broadcast(int root, std::span<std::byte> bytes) override {
    before_(transfers++);
    return inner_.broadcast(root, bytes);
  }
  int transfers = 0;

 private:
  distributed::Group& inner_;
  std::function<void(int)> before_;
};

struct Arguments {
  std::filesystem::path folder;
  Scheme scheme;
  std::string fault;
  int transfer;
  std::chrono::milliseconds timeout;
};

void note(const Arguments& arguments, const std::string& name, const std::string& text) {
  const auto final_name = arguments.folder / name;
  const auto first_name = arguments.folder / (name + ".part");
  std::ofstream(first_name) << text << "\n";
  std::filesystem::rename(first_name, final_name);  // whoever sees it sees all of it
}

void happen(const Arguments& arguments, int rank, int transfer) {
  if (rank != 1) return;
  if (arguments.fault == "slow") std::this_thread::sleep_for(std::chrono::milliseconds(30));
  if (transfer != arguments.transfer) return;
  if (arguments.fault == "kill") raise(SIGKILL);
  if (arguments.fault == "stop") raise(SIGSTOP);
  if (arguments.fault == "throw") throw std::runtime_error("something else went wrong");
}

// The whole problem in one process, and this rank's part of it.
std::string difference(distributed::Group& group, const Arguments& arguments) {
  const AttentionOptions options{.causal = true};
  const Tensor whole = test::gaussian({1, 4, 700, 16}, DType::f32, 1);
  const auto layout = Layout::serpentine({700}, group.size(), 64);
  const Tensor x = take_rows(layout, group.rank(), whole);
  Tensor out(x.shape()), lse({1, 4, x.size(2)}), dq(x.shape()), dk(x.shape()), dv(x.shape());
  const distributed::DistributedOptions how{.scheme = arguments.scheme,
                                            .timeout = arguments.timeout};
  distributed::attention(group, {layout, layout}, x, x, x, out, options, {.lse = lse}, how);
  distributed::attention_backward(
      group, {layout, layout},
      {.q = x, .k = x, .v = x, .out = out, .lse = lse, .dout = x, .dlse = {}}, options,
      {.dq = dq, .dk = dk, .dv = dv}, how);
  Tensor whole_out(whole.shape()), whole_lse({1, 4, 700});
  attention(whole, whole, whole, whole_out, options, {.lse = whole_lse});
  const auto wanted = attention_backward({.q = whole,
                                          .k = whole,
                                          .v = whole,
                                          .out = whole_out,
                                          .lse = whole_lse,
                                          .dout = whole,
                                          .dlse = {}},
                                         options);
  std::string wrong;
  const auto compare = [&](const char* what, const Tensor& of_whole, const Tensor& found) {
    if (const auto same = test::same_bits(take_rows(layout, group.rank(), of_whole), found); !same)
      wrong += std::string(what) + ": " + same.message() + "; ";
  };
  compare("out", whole_out, out);
  compare("dq", wanted.dq, dq);
  compare("dk", wanted.dk, dk);
  compare("dv", wanted.dv, dv);
  return wrong;
}

// Until as many ranks have noted their error as will.
void await_the_others(const Arguments& arguments, int ranks) {
  const auto noted = [&] {
    int count = 0;
    for (int r = 0; r < ranks; ++r)
      count += std::filesystem::exists(arguments.folder / ("error." + std::to_string(r)));
    return count;
  };
  const int wanted = arguments.fault == "throw" ? ranks : ranks - 1;
  const auto end = std::chrono::steady_clock::now() + kLong;
  while (noted() < wanted && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

int run(const Arguments& arguments) {
  mpi::Group ranks(MPI_COMM_WORLD);
  const std::string me = std::to_string(ranks.rank());
  note(arguments, "pid." + me, std::to_string(getpid()));
  MPI_Barrier(MPI_COMM_WORLD);  // all have noted theirs
  Watched group(ranks, [&](int transfer) { happen(arguments, ranks.rank(), transfer); });
  try {
    // A rank that needs nothing more of the one that is lost is content until the next call.
    const bool again = arguments.fault == "stop" || arguments.fault == "throw";
    const std::string wrong =
        difference(group, arguments) + (again ? difference(group, arguments) : "");
    if (!wrong.empty()) std::cout << "rank " << me << ": " << wrong << std::endl;
    if (arguments.fault == "none" && ranks.rank() == 0)
      std::cout << "transfers " << group.transfers << std::endl;
    return wrong.empty() ? 0 : 1;
  } catch (const distributed::PeerError& error) {
    std::string again = "is refused";
    try {
      difference(group, arguments);
      again = "is taken";
    } catch (const distributed::PeerError&) {
    }
    note(arguments, "error." + me,
         std::string("PeerError: ") + error.what() + "\nanother call " + again);
  } catch (const std::exception& error) {
    note(arguments, "error." + me, std::string("other error: ") + error.what());
  }
  await_the_others(arguments, ranks.size());
  ranks.abort(3);
}

}  // namespace
}  // namespace attend

int main(int argc, char** argv) {
  if (argc != 6) return 2;
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
  const int status =
      attend::run({argv[1],
                   std::strcmp(argv[2], "heads") == 0 ? attend::distributed::Scheme::heads
                                                      : attend::distributed::Scheme::gather,
                   argv[3], std::stoi(argv[4]), std::chrono::milliseconds(std::stoi(argv[5]))});
  MPI_Finalize();
  return status;
}
