#include "terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace attend::cli {
namespace {

constexpr std::size_t kBar = 20;  // characters

bool colour_on(int descriptor) {
  const char* none = std::getenv("NO_COLOR");
  const char* kind = std::getenv("TERM");
  return ::isatty(descriptor) == 1 && (none == nullptr || *none == '\0') && kind != nullptr &&
         std::strcmp(kind, "dumb") != 0;
}

std::size_t columns_of_stderr() {
  winsize size{};
  return ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

bool colour_on_stdout() { return colour_on(STDOUT_FILENO); }
bool colour_on_stderr() { return colour_on(STDERR_FILENO); }
bool terminal_on_stderr() { return ::isatty(STDERR_FILENO) == 1; }

int columns_of_stdout() {
  winsize size{};
  if (::isatty(STDOUT_FILENO) != 1) return 0;
  return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

bool unicode_terminal() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"})
    if (const char* value = std::getenv(name); value != nullptr && *value != '\0') {
      const std::string_view locale = value;
      return locale.find("UTF-8") != locale.npos || locale.find("utf8") != locale.npos;
    }
  return false;
}

Progress::Progress(std::string what, std::int64_t total)
    : what_(std::move(what)), total_(std::max<std::int64_t>(total, 1)),
      active_(terminal_on_stderr()), colour_(colour_on_stderr()),
      next_(begin_ + std::chrono::milliseconds(300)) {}  // short work shows nothing

Progress::~Progress() {
  if (shown_) std::fputs("\r\033[K", stderr);
}

void Progress::show(std::int64_t done, std::string_view note) {
  const Clock::time_point now = Clock::now();
  if (!active_ || now < next_) return;
  next_ = now + std::chrono::milliseconds(100);
  shown_ = true;
  const double part = std::clamp(static_cast<double>(done) / static_cast<double>(total_), 0.0, 1.0);
  const double seconds = std::chrono::duration<double>(now - begin_).count();
  const auto full = static_cast<std::size_t>(part * kBar);
  const std::string bar = std::string(full, '#') + std::string(kBar - full, '.');
  char counts[96];
  std::snprintf(counts, sizeof counts, "%3.0f%% %lld of %lld", 100 * part,
                static_cast<long long>(done), static_cast<long long>(total_));
  std::string before = what_ + " [", after = std::string("] ") + counts;
  if (done > 0) {
    std::snprintf(counts, sizeof counts, ", %.0f s left", seconds * (1 - part) / part);
    after += counts;
  }
  if (!note.empty()) after.append("  ").append(note);
  // A line that wraps could not be taken away.
  const std::size_t width = before.size() + kBar, columns = columns_of_stderr();
  if (width >= columns) return;
  after.resize(std::min(after.size(), columns - 1 - width));
  std::fprintf(stderr, "\r%s%s%s%s%s\033[K", before.c_str(), colour_ ? "\033[36m" : "", bar.c_str(),
               colour_ ? "\033[0m" : "", after.c_str());
  std::fflush(stderr);
}

Waiting::Waiting(std::string what) {
  if (!terminal_on_stderr()) return;
  clock_ = std::thread([this, what = std::move(what)] {
    std::unique_lock lock(mutex_);
    for (int seconds = 1; !ended_.wait_for(lock, std::chrono::seconds(1), [this] { return over_; });
         ++seconds)
      std::fprintf(stderr, "\r%s, %d s\033[K", what.c_str(), seconds);
    std::fputs("\r\033[K", stderr);
  });
}

Waiting::~Waiting() {
  if (!clock_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  ended_.notify_one();
  clock_.join();
}

}  // namespace attend::cli
