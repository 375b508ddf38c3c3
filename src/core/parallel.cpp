// The thread pool. One call of run() is a Job, on the caller's stack, shown to the workers through
// one of the pool's slots:
//
//   open    0 0 0 1 0 1      one bit a slot that wants helpers; workers spin and sleep on this word
//                 |   |
//   slots         |   state: owned, 2 free seats, 1 helper     job -> body, strands, next strand
//                 state: owned, 3 free seats, 0 helpers        job -> ...
//
// The caller claims a free slot, opens it with a seat for each helper that it can use, takes
// strands itself until none is left, closes the slot, which removes the seats, and waits for its
// helpers: the workers that have taken a seat. There is no lock on this way, and nothing is
// allocated.
//
// Why no worker touches a Job that has gone. A worker reads slot.job only after it has turned a
// free seat into a helper, by a compare-and-swap of slot.state, and steps down after its last look
// at the job. The caller removes the free seats from the same word and returns when no helper is
// left: whoever came before is waited for, whoever comes later finds no seat. What a worker touches
// afterwards (the slot, to wake its owner) belongs to the pool, which joins its workers before it
// goes; a slot that has a new owner by then gets a needless wake-up, no more.
//
// Why nobody waits for ever. A caller waits for helpers only, each of which is running a strand.
// That strand may itself wait inside run(), for helpers of a job that is younger than the caller's,
// as it was made inside it. So every chain of waiting threads leads to younger and younger jobs,
// and ends at a thread that works. (A waiting caller that took strands of other jobs would break
// this.)
//
// Memory order, none of it left to the strong order of x86. Opening releases slot.state and
// taking a seat acquires it, so a helper sees the job and all that the caller wrote before.
// Stepping down releases it and the owner's reading of "no helpers" acquires it, so the caller sees
// all that the strands wrote; both are read-modify-writes and thus keep up the release sequences of
// those before them. Freeing a slot releases and claiming it acquires. Job::next only numbers the
// strands, relaxed. Going to sleep is the one place where each side writes one word and reads the
// other's: the worker writes `sleepers` and reads `open`, the caller writes `open` and reads
// `sleepers`. These four are seq_cst, so at least one of them sees the other. `busy` is a hint:
// workers that neither sleep nor have a seat spin, and need not be woken. Two callers may count on
// the same ones; then a job has fewer helpers.
#include "core/parallel.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cfenv>
#include <chrono>
#include <climits>
#include <csignal>
#include <cstdint>
#include <mutex>
#include <vector>

namespace attend {
namespace {

constexpr std::size_t kCacheLine = 64;

// Waking a sleeping thread takes 5 to 50 microseconds. Who spins as long as that before going to
// sleep waits at most twice as long as with perfect foresight.
constexpr std::chrono::microseconds kSpinTime{50};

using Word = std::atomic<std::uint32_t>;
static_assert(sizeof(Word) == sizeof(std::uint32_t) && Word::is_always_lock_free,
              "the kernel reads these words as plain 32-bit integers");

// State::open: bit i is slot i's, set while it has free seats and strands to take. The top one
// tells the workers to end.
constexpr int kSlots = 31;
constexpr std::uint32_t kStop = 1u << 31;

// Slot::state: flags, free seats, helpers. 0 is a slot that nobody owns.
constexpr std::uint32_t kOwned = 1u << 31;
constexpr std::uint32_t kOwnerSleeps = 1u << 30;
constexpr std::uint32_t kSeat = 1u << 15;
constexpr std::uint32_t kAllSeats = (kSeat - 1) * kSeat;

struct Job {
  StrandBody body;
  int strands;
  std::uint32_t bit;                                      // of its slot, in State::open
  std::fenv_t environment;                                // the caller's
  alignas(kCacheLine) std::atomic<std::int64_t> next{0};  // strand; helpers overshoot: 64 bits
};

struct alignas(kCacheLine) Slot {
  Word state{0};
  Job* job = nullptr;
};

// Sleeps while the word is `seen`, or not quite so long: the caller looks again.
void sleep_while(Word& word, std::uint32_t seen, const timespec* at_most = nullptr) noexcept {
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, seen, at_most);
}

void wake(Word& word, int sleepers) noexcept {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, sleepers);
}

void pause_briefly() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");  // `yield` does nothing on most cores
#endif
}

template <class Condition>
bool spin_until(Condition condition) noexcept {
  const auto end = std::chrono::steady_clock::now() + kSpinTime;
  do {
    for (int i = 0; i < 16; ++i) {  // reading the clock costs as much as a few pauses
      if (condition()) return true;
      pause_briefly();
    }
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

// What workers leave to the application's own threads: every signal but the faults of their own
// code, whose handlers must run where they happen.
sigset_t signals_to_block() noexcept {
  sigset_t signals;
  sigfillset(&signals);
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS}) {
    sigdelset(&signals, fault);
  }
  return signals;
}

}  // namespace

struct ThreadPool::State {
  explicit State(int wanted) : threads(std::max(wanted, 1)) {
    workers.reserve(static_cast<std::size_t>(threads - 1));
  }

  bool workers_ready();
  Slot* claim_slot() noexcept;
  void open_slot(Slot& slot, Job& job) noexcept;
  void close_slot(Slot& slot, Interrupt* interrupt) noexcept;
  bool take_strands(Job& job) noexcept;

  static void* work(void* state) noexcept;
  std::uint32_t wait_for_jobs() noexcept;
  bool help(Slot& slot) noexcept;
  void stop_workers() noexcept;

  const int threads;
  std::mutex starting;  // guards the start of the workers, and is held over fork()
  std::atomic<bool> started{false};
  // Constant while `started`:
  std::vector<pthread_t> workers;  // fewer than asked for if the system has no more
  bool spin = false;
  unsigned forks = 0;  // how many forks lie between this process and the first

  alignas(kCacheLine) Word open{0};
  alignas(kCacheLine) std::atomic<int> sleepers{0};
  std::atomic<int> busy{0};  // workers that have a seat
  std::array<Slot, kSlots> slots;
};

// Starts the workers if that has not been tried yet. Whether there are any.
bool ThreadPool::State::workers_ready() {
  if (!started.load(std::memory_order_acquire)) {
    const std::lock_guard lock(starting);
    if (!started.load(std::memory_order_relaxed)) {
      spin = threads <= available_processors();  // else it would keep others from working
      // A new thread inherits the mask, so no signal finds a moment when it is not blocked.
      const sigset_t blocked = signals_to_block();
      sigset_t own;
      pthread_sigmask(SIG_BLOCK, &blocked, &own);
      pthread_t worker;
      while (workers.size() + 1 < static_cast<std::size_t>(threads) &&
             pthread_create(&worker, nullptr, work, this) == 0) {
        workers.push_back(worker);
      }
      pthread_sigmask(SIG_SETMASK, &own, nullptr);
      started.store(true, std::memory_order_release);
    }
  }
  return !workers.empty();
}

// A slot for the caller alone, or null: with so many jobs under way every thread has work.
Slot* ThreadPool::State::claim_slot() noexcept {
  for (Slot& slot : slots) {
    std::uint32_t free = 0;
    if (slot.state.load(std::memory_order_relaxed) == free &&
        slot.state.compare_exchange_strong(free, kOwned, std::memory_order_acquire,
                                           std::memory_order_relaxed)) {
      return &slot;
    }
  }
  return nullptr;
}

void ThreadPool::State::open_slot(Slot& slot, Job& job) noexcept {
  const int seats = std::min({job.strands, threads, static_cast<int>(kSeat)}) - 1;
  slot.job = &job;
  // The bit first: a worker that looks into the slot for an older job's sake may take all the
  // strands at once, and a bit set after it was cleared would never let the workers sleep.
  open.fetch_or(job.bit, std::memory_order_seq_cst);
  slot.state.store(kOwned | static_cast<std::uint32_t>(seats) * kSeat, std::memory_order_release);
  const int asleep = sleepers.load(std::memory_order_seq_cst);
  const int spinning =
      static_cast<int>(workers.size()) - asleep - busy.load(std::memory_order_relaxed);
  // All at once: letting each wake a few others was no quicker, on 16 processors.
  if (asleep > 0 && seats > spinning) wake(open, seats - std::max(spinning, 0));
}

// Removes the free seats and waits for the helpers.
void ThreadPool::State::close_slot(Slot& slot, Interrupt* interrupt) noexcept {
  constexpr timespec kBetweenQuestions{.tv_sec = 0, .tv_nsec = 10'000'000};
  std::uint32_t seen = slot.state.fetch_and(~kAllSeats, std::memory_order_acquire) & ~kAllSeats;
  const auto helpers_left = [&] {
    seen = slot.state.load(std::memory_order_acquire);
    return seen == kOwned;
  };
  if (seen != kOwned && !(spin && spin_until(helpers_left))) {
    seen = slot.state.fetch_or(kOwnerSleeps, std::memory_order_acquire) | kOwnerSleeps;
    while (seen != (kOwned | kOwnerSleeps)) {
      sleep_while(slot.state, seen, interrupt != nullptr ? &kBetweenQuestions : nullptr);
      must_stop(interrupt, true);
      seen = slot.state.load(std::memory_order_acquire);
    }
  }
  slot.state.store(0, std::memory_order_release);
}

// Runs strands until none is left to take. False if the body forked and this is the child: no other
// thread exists there, nor any slot or job of theirs, and a helper must not even look at its job
// again, because the stack it stood on is free for new threads.
bool ThreadPool::State::take_strands(Job& job) noexcept {
  const unsigned forks_before = forks;
  for (;;) {
    const std::int64_t strand = job.next.fetch_add(1, std::memory_order_relaxed);
    if (strand >= job.strands) return true;
    if (strand == job.strands - 1) open.fetch_and(~job.bit, std::memory_order_relaxed);
    job.body(static_cast<int>(strand));
    if (forks != forks_before) return false;
  }
}

// A worker's life.
void* ThreadPool::State::work(void* state) noexcept {
  State& pool = *static_cast<State*>(state);
  pthread_setname_np(pthread_self(), "attend");
  std::fesetenv(FE_DFL_ENV);  // not what the thread happened to inherit
  for (;;) {
    std::uint32_t jobs = pool.wait_for_jobs();
    if (jobs & kStop) return nullptr;
    for (; jobs != 0; jobs &= jobs - 1) {
      Slot& slot = pool.slots[static_cast<std::size_t>(std::countr_zero(jobs))];
      if (!pool.help(slot)) {
        pool.stop_workers();  // so that the child ends with this thread, if it has no others
        return nullptr;
      }
    }
  }
}

std::uint32_t ThreadPool::State::wait_for_jobs() noexcept {
  std::uint32_t jobs = 0;
  const auto there_are_jobs = [&] {
    jobs = open.load(std::memory_order_acquire);
    return jobs != 0;
  };
  if (spin) spin_until(there_are_jobs);
  while (!there_are_jobs()) {
    sleepers.fetch_add(1, std::memory_order_seq_cst);
    if (open.load(std::memory_order_seq_cst) == 0) sleep_while(open, 0);
    sleepers.fetch_sub(1, std::memory_order_relaxed);
  }
  return jobs;
}

// Takes a seat, if one is free, and steps down when no strand is left to take. False as in
// take_strands: this thread has nobody to work for.
bool ThreadPool::State::help(Slot& slot) noexcept {
  std::uint32_t seen = slot.state.load(std::memory_order_relaxed);
  do {
    if ((seen & kAllSeats) == 0) return true;
  } while (!slot.state.compare_exchange_weak(seen, seen - kSeat + 1, std::memory_order_acquire,
                                             std::memory_order_relaxed));
  if ((seen & kAllSeats) == kSeat) {  // the last one
    open.fetch_and(~slot.job->bit, std::memory_order_relaxed);
  }
  busy.fetch_add(1, std::memory_order_relaxed);
  std::fesetenv(&slot.job->environment);
  const bool same_process = take_strands(*slot.job);
  std::fesetenv(FE_DFL_ENV);
  if (!same_process) return false;
  busy.fetch_sub(1, std::memory_order_relaxed);
  seen = slot.state.fetch_sub(1, std::memory_order_release);
  if (seen == (kOwned | kOwnerSleeps | 1)) wake(slot.state, 1);
  return true;
}

// They end when they have no strand to run; jobs that come later have only their caller.
void ThreadPool::State::stop_workers() noexcept {
  open.fetch_or(kStop, std::memory_order_seq_cst);
  wake(open, INT_MAX);
}

ThreadPool::ThreadPool(int threads) : state_(std::make_unique<State>(threads)) {}

ThreadPool::~ThreadPool() {
  state_->stop_workers();
  for (const pthread_t worker : state_->workers) pthread_join(worker, nullptr);
}

int ThreadPool::threads() const noexcept { return state_->threads; }

void ThreadPool::run(int strands, StrandBody body, Interrupt* interrupt) {
  State& pool = *state_;
  const bool together = strands > 1 && pool.threads > 1 && pool.workers_ready();
  Slot* const slot = together ? pool.claim_slot() : nullptr;
  if (!slot) {
    for (int strand = 0; strand < strands; ++strand) body(strand);
    return;
  }
  Job job{
      .body = body, .strands = strands, .bit = 1u << (slot - pool.slots.data()), .environment = {}};
  std::fegetenv(&job.environment);
  pool.open_slot(*slot, job);
  if (pool.take_strands(job)) {
    pool.close_slot(*slot, interrupt);
  } else {  // a child of fork(): the slot is no longer this job's
    for (std::int64_t strand; (strand = job.next.fetch_add(1)) < strands;) {
      body(static_cast<int>(strand));
    }
  }
}

// With `starting` held over fork(), `started` and `workers` are whole in the child.
void ThreadPool::before_fork() noexcept { state_->starting.lock(); }

void ThreadPool::after_fork_in_parent() noexcept { state_->starting.unlock(); }

// The only thread of the child makes the pool as new. The handles of the workers are dropped, not
// joined: there is nothing behind them.
void ThreadPool::after_fork_in_child() noexcept {
  State& pool = *state_;
  ++pool.forks;
  pool.workers.clear();
  pool.started.store(false, std::memory_order_relaxed);
  pool.open.store(0, std::memory_order_relaxed);
  pool.sleepers.store(0, std::memory_order_relaxed);
  pool.busy.store(0, std::memory_order_relaxed);
  for (Slot& slot : pool.slots) slot.state.store(0, std::memory_order_relaxed);
  pool.starting.unlock();
}

// The calling thread's mask, which the threads it starts inherit.
int available_processors() noexcept {
  constexpr int kMost = 1 << 20;
  for (int processors = CPU_SETSIZE; processors <= kMost; processors *= 2) {
    cpu_set_t* const mask = CPU_ALLOC(static_cast<std::size_t>(processors));
    if (!mask) break;
    const std::size_t bytes = CPU_ALLOC_SIZE(static_cast<std::size_t>(processors));
    const bool known = sched_getaffinity(0, bytes, mask) == 0;
    const bool too_short = !known && errno == EINVAL;  // the kernel's own mask is longer
    const int count = known ? CPU_COUNT_S(bytes, mask) : 0;
    CPU_FREE(mask);
    if (count > 0) return count;
    if (!too_short) break;
  }
  return static_cast<int>(std::max(sysconf(_SC_NPROCESSORS_ONLN), 1L));
}

}  // namespace attend
