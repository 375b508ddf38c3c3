// Faults around the library, at random moments of random calls: no memory for the nth allocation,
// a workspace that cannot be had, a parallel_for that throws, wrong arguments, files that are cut
// or changed or cannot be written, signals, and a fork while other threads are inside a call. Every
// call ends with a result or with its documented class of error, the Context works afterwards and
// gives the same bits, a refused call has written nothing, and nothing leaks.
#include "calls.h"
#include "support/counted_allocations.h"
#include "support/dice.h"
#include "support/fork.h"
#include "support/io_files.h"
#include "support/property_compare.h"
#include "sweep.h"

#include <sys/resource.h>
#include <sys/time.h>

#include <atomic>
#include <cmath>
#include <csignal>
#include <cstring>
#include <set>

namespace attend::test {
namespace {

using cases::Case;

// Some allocation of the C++ runtime, then the call once more.
std::string without_allocation(std::size_t failing, const Case& problem, Call call,
                               const std::vector<Tensor>& expected) {
  Context context({.threads = 1});
  Work work(problem);
  const std::string error = thrown(call, work, context, failing);
  if (!error.empty() && error != "OutOfMemory") return error;
  if (!error.empty() && !untouched(work)) return "OutOfMemory, and something was written";
  if (const std::string next = thrown(call, work, context); !next.empty())
    return "the next call: " + next;
  const std::string wrong = difference_of_all(expected, results_of(work));
  return wrong.empty() ? "" : "the next call: " + wrong;
}

std::string no_memory(const SweepCase& c, Dice& dice, Call call) {
  Context context({.threads = 1});
  Work work(c.problem);
  const std::size_t before = allocations;
  run_call(call, work, context);
  const std::size_t count = allocations - before;
  const std::vector<Tensor> expected = expected_of(call, c.problem);
  for (int n = 0; n < 8; ++n) {
    const auto failing =
        static_cast<std::size_t>(dice.between(1, static_cast<std::int64_t>(count) + 1));
    const std::string place = "allocation " + std::to_string(failing) + " fails: ";
    bool lost = false;
    for (int again = 0; again < 2; ++again) {  // the first time may leave what is kept for good
      const std::size_t living = living_allocations;
      const std::string wrong = without_allocation(failing, c.problem, call, expected);
      if (!wrong.empty()) return place + wrong;
      lost = living_allocations > living;
    }
    if (lost) return place + "allocations are lost";
  }
  return "";
}

// An Allocator of the Context that has nothing at its nth call; what it gave comes back.
std::string no_workspace(const SweepCase& c, Dice& dice, Call call) {
  std::int64_t left = dice.between(0, 2);
  std::set<void*> given;
  bool doubtful = false;
  {
    Context context({.threads = static_cast<int>(dice.between(1, 3)),
                     .allocator = {[&](std::size_t bytes, std::size_t alignment) -> void* {
                                     if (left-- == 0) return nullptr;
                                     void* memory =
                                         std::aligned_alloc(alignment, (bytes + alignment - 1) /
                                                                           alignment * alignment);
                                     given.insert(memory);
                                     return memory;
                                   },
                                   [&](void* memory, std::size_t) {
                                     doubtful |= given.erase(memory) != 1;
                                     std::free(memory);
                                   }}});
    Work work(c.problem);
    for (int n = 0; n < 3; ++n) {
      const std::string error = thrown(call, work, context);
      if (!error.empty() && error != "OutOfMemory") return error;
      if (!error.empty() && !untouched(work) && n == 0) return "something was written";
    }
    if (left >= 0) return "";
    if (const std::string error = thrown(call, work, context); !error.empty())
      return "the Context does not recover: " + error;
    const std::vector<Tensor> expected = expected_of(call, c.problem);
    if (const std::string wrong = difference_of_all(expected, results_of(work)); !wrong.empty())
      return wrong;
  }
  if (doubtful) return "memory came back that was not given, or twice";
  return given.empty() ? "" : std::to_string(given.size()) + " workspaces did not come back";
}

// A parallel_for that throws before, between or after its strands.
std::string parallel_for_throws(const SweepCase& c, Dice& dice, Call call) {
  struct Mine : std::runtime_error {
    using std::runtime_error::runtime_error;
  };
  std::int64_t left = dice.between(0, 4);
  Context context({.threads = 4, .parallel_for = [&](int n, const std::function<void(int)>& body) {
                     for (int strand = 0; strand < n; ++strand) {
                       if (left-- == 0) throw Mine("no threads today");
                       body(strand);
                     }
                     if (left-- == 0) throw Mine("none any more");
                   }});
  Work work(c.problem);
  try {
    run_call(call, work, context);
  } catch (const Mine&) {
  } catch (const std::exception& error) {
    return std::string("another exception: ") + error.what();
  }
  left = -1;
  if (const std::string error = thrown(call, work, context); !error.empty())
    return "the next call: " + error;
  return difference_of_all(expected_of(call, c.problem), results_of(work));
}

// An argument that no call may take: refused, and nothing written.
std::string wrong_argument(const SweepCase& c, Dice& dice) {
  Work work(c.problem);
  const Tensor q = work.trial.q;
  Arguments a = work.trial.arguments();
  Tensor other;
  const std::int64_t mistake = dice.between(0, 6);
  switch (mistake) {
    case 0:
      other = Tensor({q.size(0), q.size(1), q.size(2), q.size(3) + 1}, q.dtype()), a.q = other;
      break;
    case 1: other = Tensor(a.k.shape(), DType::i32), a.k = other; break;
    case 2: a.options.scale = NAN; break;
    case 3: a.options.dropout.p = 1.5; break;
    case 4: other = Tensor({3, 1, 2, 1, 1}, DType::boolean), a.options.mask = other; break;
    case 5: a.options.softcap = -1; break;
    default: a.v = work.written.out; break;  // overlaps what is written
  }
  for (const bool backward : {false, true}) {
    try {
      if (backward)
        attention_backward({.q = a.q,
                            .k = a.k,
                            .v = a.v,
                            .out = work.out.out,
                            .lse = work.out.lse,
                            .dout = a.dout,
                            .dlse = a.dlse},
                           a.options, work.written.views().gradients);
      else attention(a.q, a.k, a.v, work.written.out, a.options, {.lse = work.written.lse});
      if (mistake == 6 && backward) continue;  // which reads out, and does not write it
      return "mistake " + std::to_string(mistake) + " was taken";
    } catch (const InvalidArgument& error) {
      if (std::strchr(error.what(), '\n') != nullptr) return "a message of two lines";
    }
    if (!untouched(work)) return "mistake " + std::to_string(mistake) + ": something was written";
  }
  return "";
}

// Files that are cut, or have some bytes changed; and a disk that is full.
std::string broken_file(Dice& dice) {
  const std::filesystem::path path = folder() / "broken";
  const std::int64_t kind = dice.between(0, 2);
  const AttentionBlock block({.attention = kLayer, .hidden_dim = 5});
  if (kind == 0) save_npy(path, gaussian({3, 4}, DType::f32, 5));
  if (kind == 1) MultiHeadAttention(kLayer).save(path);
  if (kind == 2) block.save(path);
  std::string bytes = bytes_of(path);
  const bool cut = dice.chance(0.4);
  if (cut)
    bytes.resize(
        static_cast<std::size_t>(dice.between(0, static_cast<std::int64_t>(bytes.size()) - 1)));
  for (std::int64_t n = dice.between(cut ? 0 : 1, 4); n > 0 && !bytes.empty(); --n)
    bytes[static_cast<std::size_t>(dice.between(
        0, std::min<std::int64_t>(static_cast<std::int64_t>(bytes.size()) - 1, 400)))] =
        static_cast<char>(dice.between(0, 255));
  write_bytes(path, bytes);
  for (int again = 0; again < 2; ++again) {
    const std::size_t living = living_allocations;
    try {
      if (kind == 0) static_cast<void>(load_npy(path));
      if (kind == 1) static_cast<void>(MultiHeadAttention::load(path));
      if (kind == 2) static_cast<void>(AttentionBlock::load(path));
    } catch (const FileError& error) {
      if (std::strlen(error.what()) > 2000) return "a message of more than 2000 bytes";
      if (std::strchr(error.what(), '\n') != nullptr) return "a message of two lines";
    } catch (const std::exception& error) {
      return std::string("not a FileError: ") + error.what();
    }
    if (again == 1 && living_allocations > living)
      return std::to_string(living_allocations - living) + " allocations are lost";
  }
  return "";
}

// A limit of the file's size, which is reached in the middle: the old file stays, and nothing else.
// The signal of that would end the program, if the library let it.
std::string full_disk(Dice& dice) {
  const std::filesystem::path path = folder() / "full.npy";
  const Tensor old = gaussian({3, 4}, DType::f32, 5), large = gaussian({50, 50}, DType::f32, 6);
  save_npy(path, old);
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  rlimit limit = before;
  limit.rlim_cur = static_cast<rlim_t>(dice.between(0, 4000));
  setrlimit(RLIMIT_FSIZE, &limit);
  std::string wrong = "nothing was thrown";
  try {
    save_npy(path, large);
  } catch (const FileError&) {
    wrong = "";
  } catch (const std::exception& error) {
    wrong = std::string("not a FileError: ") + error.what();
  }
  setrlimit(RLIMIT_FSIZE, &before);
  if (!wrong.empty()) return wrong;
  if (!same_bits(load_npy(path), old)) return "the old file is not what it was";
  for (const auto& entry : std::filesystem::directory_iterator(folder()))
    if (entry.path().filename().string().starts_with(".attend-")) return "a temporary file stays";
  return "";
}

// A signal every millisecond or so, whose handler does nothing, and no call is restarted by itself.
std::string signals(const SweepCase& c, Call call) {
  Work work(c.problem);
  const std::vector<Tensor> expected = expected_of(call, c.problem);
  struct sigaction action {
  }, before{};
  action.sa_handler = [](int) {};
  sigaction(SIGALRM, &action, &before);
  const itimerval often{{0, 700}, {0, 700}}, never{};
  setitimer(ITIMER_REAL, &often, nullptr);
  std::string wrong;
  for (int n = 0; n < 5 && wrong.empty(); ++n) {
    wrong = thrown(call, work, context_of(3));
    if (wrong.empty()) wrong = difference_of_all(expected, results_of(work));
  }
  setitimer(ITIMER_REAL, &never, nullptr);
  sigaction(SIGALRM, &before, nullptr);
  return wrong;
}

// fork() while two other threads are inside calls: the child calls, too, with the same Context.
std::string forks(const SweepCase& c, Call call) {
  if (why_no_threads_after_fork() != nullptr || why_no_fork_beside_threads() != nullptr) return "";
  Context context({.threads = 3});
  Work work(c.problem);
  const std::vector<Tensor> expected = expected_of(call, c.problem);
  std::atomic<bool> stop{false};
  const auto busy = [&] {
    Work own(c.problem);
    while (!stop) run_call(call, own, context);
  };
  std::thread first(busy), second(busy);
  std::string wrong;
  for (int n = 0; n < 3 && wrong.empty(); ++n) {
    const pid_t child = fork();
    if (child == 0) {
      const bool good = thrown(call, work, context).empty() &&
                        difference_of_all(expected, results_of(work)).empty();
      _exit(good ? 0 : 1);
    }
    wrong = failure_of(child);
  }
  stop = true;
  first.join();
  second.join();
  return wrong;
}

std::vector<std::string> judge(const SweepCase& c, Tally& tally) {
  Dice dice(c.variant, 184);
  const Call call = dice.one_of(kCalls);
  const std::int64_t fault = dice.between(0, 11);
  const std::string of_call = name_of_call(call);
  std::string name, wrong;
  if (fault < 4) name = "no memory, " + of_call, wrong = no_memory(c, dice, call);
  else if (fault < 6) name = "no workspace, " + of_call, wrong = no_workspace(c, dice, call);
  else if (fault == 6)
    name = "parallel_for, " + of_call, wrong = parallel_for_throws(c, dice, call);
  else if (fault == 7) name = "wrong argument", wrong = wrong_argument(c, dice);
  else if (fault == 8) name = "broken file", wrong = broken_file(dice);
  else if (fault == 9) name = "full disk", wrong = full_disk(dice);
  else if (fault == 10) name = "signals, " + of_call, wrong = signals(c, call);
  else name = "fork, " + of_call, wrong = forks(c, call == Call::file ? Call::forward : call);
  tally.ran(name);
  if (wrong.empty()) return {};
  return {name + ": " + wrong};
}

SweepCase draw(std::uint64_t seed) {
  Case c = random_case(seed);
  c.width = cases::Width::same;  // gradients need out in the tensors' type
  return {c, seed};
}

}  // namespace
}  // namespace attend::test

int main(int argc, char** argv) {
  return attend::test::sweep_main(argc, argv,
                                  {"sweep_faults", attend::test::draw, attend::test::judge});
}
