#include "signals.h"

#include "status.h"

#include <fcntl.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <new>
#include <string_view>

namespace attend::cli {
namespace {

std::atomic<int> came = 0;  // any thread may be the one that is interrupted
static_assert(std::atomic<int>::is_always_lock_free);

std::atomic<void (*)()> clean_up_at_end = nullptr;
std::terminate_handler usual_terminate = nullptr;  // prints what was thrown

[[noreturn]] void end_by_terminate() {
  try {
    if (const std::exception_ptr error = std::current_exception()) std::rethrow_exception(error);
  } catch (const std::bad_alloc&) {
    if (void (*clean_up)() = clean_up_at_end) clean_up();
    constexpr std::string_view kLine = "attend: there is not enough memory\n";
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, kLine.data(), kLine.size());
    ::_exit(kMemory);
  } catch (...) {  // a mistake of the program
  }
  if (usual_terminate != nullptr) usual_terminate();
  std::abort();
}

constexpr std::size_t kStack = std::size_t{1} << 20;  // kernels take some hundred KiB
constexpr std::size_t kPage = 4096;

// Bytes by which the stack may grow under `ulimit -s`, at most kStack. What lies highest on it is
// the name of the program.
std::size_t stack_left() {
  constexpr std::size_t kMargin = 64 << 10;
  struct rlimit limit {};
  if (::getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return kStack;
  const char here = 0;
  const std::size_t used = ::getauxval(AT_EXECFN) - reinterpret_cast<std::uintptr_t>(&here);
  if (used > limit.rlim_cur || limit.rlim_cur - used < kMargin) return 0;
  return std::min<std::size_t>(kStack, limit.rlim_cur - used - kMargin);
}

// Not inline: its memory is free again for what is called next.
[[gnu::noinline]] void touch_stack(std::size_t bytes) {
  auto* const memory = static_cast<volatile char*>(__builtin_alloca(bytes));
  for (std::size_t n = 1; n <= bytes; n += kPage) memory[bytes - n] = 0;  // downwards, as it grows
}

void grow_stack() {
  const std::size_t bytes = stack_left();
  if (bytes == 0) return;
  void* room = ::mmap(nullptr, 2 * bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (room == MAP_FAILED) throw std::bad_alloc();
  ::munmap(room, 2 * bytes);
  touch_stack(bytes);
}

}  // namespace

void prepare_process() {
  grow_stack();
  usual_terminate = std::set_terminate(end_by_terminate);
  ::signal(SIGXFSZ, SIG_IGN);
  // open() takes the lowest free number. What is printed there fails: it is open the wrong way.
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (::fcntl(descriptor, F_GETFD) == -1 && errno == EBADF)
      ::open("/dev/null", descriptor == STDIN_FILENO ? O_WRONLY : O_RDONLY);
}

void set_clean_up(void (*clean_up)()) { clean_up_at_end = clean_up; }

HeldSignals::HeldSignals() {
  came = 0;
  struct sigaction action {};
  action.sa_handler = [](int signal) { came = signal; };
  action.sa_flags = SA_RESTART;
  for (std::size_t n = 0; n < kHeld.size(); ++n) {
    ::sigaction(kHeld[n], nullptr, &before_[n]);
    // What is ignored, as under nohup, stays so.
    if (before_[n].sa_handler != SIG_IGN) ::sigaction(kHeld[n], &action, nullptr);
  }
}

HeldSignals::~HeldSignals() {
  for (std::size_t n = 0; n < kHeld.size(); ++n) ::sigaction(kHeld[n], &before_[n], nullptr);
  if (const int signal = came.exchange(0)) ::raise(signal);
}

bool HeldSignals::waiting() noexcept { return came != 0; }

}  // namespace attend::cli
