// What is shown to somebody who sits in front of a terminal, and to nobody else.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

namespace attend::cli {

// Whether stdout (or stderr) may be coloured: a terminal that knows colours, and no NO_COLOR.
bool colour_on_stdout();
bool colour_on_stderr();
bool terminal_on_stderr();
// Of the terminal on stdout; 0 if there is none.
int columns_of_stdout();
// Whether the locale's characters are UTF-8.
bool unicode_terminal();

// A line on stderr that is rewritten ten times a second at most, and taken away at the end. Where
// stderr is no terminal there is none.
//
//   training [#######.............]  35% 700 of 2000, 12 s left  loss 0.82
class Progress {
 public:
  Progress(std::string what, std::int64_t total);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void show(std::int64_t done, std::string_view note = {});

 private:
  using Clock = std::chrono::steady_clock;
  std::string what_;
  std::int64_t total_;
  bool shown_ = false;
  const bool active_;
  const bool colour_;
  const Clock::time_point begin_ = Clock::now();
  Clock::time_point next_;
};

// The same where nobody knows how much is left: "attending, 12 s", from the second second on.
class Waiting {
 public:
  explicit Waiting(std::string what);
  ~Waiting();
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  bool over_ = false;
  std::thread clock_;
};

}  // namespace attend::cli
