#include "signals.h"

#include "command.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <exception>
#include <new>
#include <string_view>

namespace attend::cli {
namespace {

std::atomic<int> came = 0;  // any thread may be the one that is interrupted
static_assert(std::atomic<int>::is_always_lock_free);

std::atomic<void (*)()> clean_up_at_end = nullptr;

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
  std::abort();
}

constexpr std::size_t kStack = std::size_t{1} << 20;  // kernels take some hundred KiB

// Not inline: its memory is free again for what is called next.
[[gnu::noinline]] void grow_stack() {
  void* room = ::mmap(nullptr, 2 * kStack, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (room == MAP_FAILED) throw std::bad_alloc();
  ::munmap(room, 2 * kStack);
  [[maybe_unused]] volatile char memory[kStack];
  for (std::size_t n = 1; n <= kStack; n += 4096) memory[kStack - n] = 0;  // downwards, as it grows
}

}  // namespace

void prepare_process() {
  grow_stack();
  std::set_terminate(end_by_terminate);
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
