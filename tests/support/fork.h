// Children made by fork(): where they can be tested, and how they ended.
#pragma once

#include <pthread.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <string>
#include <string_view>
#include <thread>

#if defined(__SANITIZE_THREAD__)
#define ATTEND_TEST_TSAN 1
#elif defined(__SANITIZE_ADDRESS__)
#define ATTEND_TEST_ASAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define ATTEND_TEST_TSAN 1
#elif __has_feature(address_sanitizer)
#define ATTEND_TEST_ASAN 1
#endif
#endif

namespace attend::test {

// Null, or why the child of a process with threads cannot start threads here. To be asked on the
// main thread, whose name is the program's: of the emulator, where there is one.
inline const char* why_no_threads_after_fork() {
#ifdef ATTEND_TEST_TSAN
  return "the thread sanitizer does not support threads in the child of a process with threads";
#else
  char name[16] = "";
  pthread_getname_np(pthread_self(), name, sizeof(name));
  if (std::string_view(name).starts_with("qemu-"))
    return "qemu fails when the child of a process with threads starts threads";
  return nullptr;
#endif
}

// Null, or why a process whose other threads are at work cannot fork here.
inline const char* why_no_fork_beside_threads() {
#if defined(ATTEND_TEST_ASAN) || defined(ATTEND_TEST_TSAN)
  return "a fork leaves the sanitizer's locks locked that other threads hold";
#else
  return nullptr;
#endif
}

// "" or how the child ended. One that hangs is killed after ten minutes, which is much even for a
// busy machine: an alarm of its own could come to nothing, as all of its threads may block the
// signal.
inline std::string failure_of(pid_t child) {
  if (child < 0) return "no child";
  int status = 0;
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(10);
  pid_t ended = 0;
  while ((ended = waitpid(child, &status, WNOHANG)) == 0) {
    if (std::chrono::steady_clock::now() > end) {
      kill(child, SIGKILL);
      waitpid(child, &status, 0);
      return "the child hung";
    }
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  if (ended != child) return "no child";
  if (WIFSIGNALED(status)) return "the child died of signal " + std::to_string(WTERMSIG(status));
  if (WEXITSTATUS(status) != 0) return "the child exited " + std::to_string(WEXITSTATUS(status));
  return "";
}

}  // namespace attend::test
