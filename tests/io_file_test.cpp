// Files themselves, whatever is in them: that one appears whole or not at all, and what happens
// when the disk, the rights or the time do not suffice.
#include "io/file.h"
#include "support/fork.h"
#include "support/io_files.h"

#include <attend/io.h>

#include <gtest/gtest.h>

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <functional>
#include <thread>

// Asked before every fsync() of this program: what it should fail of, or 0.
static std::function<int()> before_fsync;

extern "C" int fsync(int descriptor) {
  errno = before_fsync ? before_fsync() : 0;
  return errno != 0 ? -1 : static_cast<int>(::syscall(SYS_fsync, descriptor));
}

namespace attend::test {
namespace {

const Tensor& small() {
  static const Tensor tensor = random_tensor({2, 3}, DType::f32, 1);
  return tensor;
}
const Tensor& large() {  // of several writes, if it is strided
  static const Tensor tensor = random_tensor({200, 300}, DType::f64, 2);
  return tensor;
}
ConstTensorView strided() { return large().view().permute({1, 0}); }

// ---- Whole or not at all -----------------------------------------------------------------------

// Files cannot grow past `bytes` while it lives: the way a disk gets full. SIGXFSZ, which the
// system sends then, would end this program.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    ::getrlimit(RLIMIT_FSIZE, &old_);
    rlimit limit = old_;
    limit.rlim_cur = bytes;
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() { ::setrlimit(RLIMIT_FSIZE, &old_); }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit old_{};
};

TEST(Atomic, a_save_that_fails_anywhere_leaves_the_old_file) {
  const TemporaryFolder folder;
  save_npy(folder / "x.npy", small());
  save_safetensors(folder / "x.safetensors", {{"old", small()}});
  const std::string old_npy = bytes_of(folder / "x.npy");
  const std::string old_safetensors = bytes_of(folder / "x.safetensors");
  for (const rlim_t bytes : {0, 1, 100, 128, 1000, 65536, 100000, 400000}) {
    const FileSizeLimit limit(bytes);
    for (const ConstTensorView& view : {large().view(), strided()}) {
      EXPECT_NE(error_of([&] {
                  save_npy(folder / "x.npy", view);
                }).find("x.npy: cannot be written: File too large"),
                std::string::npos)
          << bytes;
      EXPECT_NE(error_of([&] {
                  save_safetensors(folder / "x.safetensors", {{"new", view}});
                }).find("x.safetensors: cannot be written: File too large"),
                std::string::npos)
          << bytes;
      EXPECT_NE(error_of([&] { save_npy(folder / "new.npy", view); }), "nothing");
    }
  }
  EXPECT_EQ(bytes_of(folder / "x.npy"), old_npy);
  EXPECT_EQ(bytes_of(folder / "x.safetensors"), old_safetensors);
  EXPECT_EQ(folder.listing(), "x.npy x.safetensors") << "something was left behind";
}

TEST(Atomic, the_data_is_on_the_disk_before_the_file_has_its_name) {
  const TemporaryFolder folder;
  write_bytes(folder / "x", "old");
  std::string found;  // at the first of two: of the file, then of the folder
  int calls = 0;
  before_fsync = [&] {
    if (calls++ == 0) found = bytes_of(folder / "x");
    return 0;
  };
  save_npy(folder / "x", small());
  EXPECT_EQ(found, "old");
  EXPECT_EQ(calls, 2);
  write_bytes(folder / "x", "old");
  before_fsync = [] { return EIO; };
  EXPECT_NE(error_of([&] {
              save_npy(folder / "x", small());
            }).find("x: cannot be written: Input/output error"),
            std::string::npos);
  before_fsync = nullptr;
  EXPECT_EQ(bytes_of(folder / "x"), "old");
  EXPECT_EQ(folder.listing(), "x");
}

TEST(Atomic, wrong_arguments_leave_the_old_file) {
  const TemporaryFolder folder;
  write_bytes(folder / "x", "old");
  EXPECT_NE(error_of([&] { save_npy(folder / "x", Tensor({2}, DType::bf16)); }), "nothing");
  EXPECT_NE(error_of([&] {
              save_safetensors(folder / "x", {{"q", small()}, {"q", small()}});
            }),
            "nothing");
  EXPECT_EQ(bytes_of(folder / "x"), "old");
  EXPECT_EQ(folder.listing(), "x");
}

TEST(Atomic, the_old_file_is_there_until_the_new_one_is_whole) {
  const TemporaryFolder folder;
  write_bytes(folder / "x", "old");
  {
    AtomicFile file("save_npy", folder / "x");
    file.write("new ", 4);
    EXPECT_EQ(bytes_of(folder / "x"), "old");
    file.write("file", 4);
    EXPECT_EQ(bytes_of(folder / "x"), "old");
    file.commit();
    EXPECT_EQ(bytes_of(folder / "x"), "new file");
    EXPECT_EQ(folder.listing(), "x");
  }
  { AtomicFile("save_npy", folder / "x").write("not committed", 13); }
  EXPECT_EQ(bytes_of(folder / "x"), "new file");
  EXPECT_EQ(folder.listing(), "x");
}

TEST(Atomic, a_process_killed_before_the_end_leaves_the_old_file) {
  const TemporaryFolder folder;
  write_bytes(folder / "x", "old");
  const pid_t child = fork();
  if (child == 0) {
    AtomicFile file("save_npy", folder / "x");
    file.write("new", 3);
    ::kill(::getpid(), SIGKILL);
  }
  EXPECT_EQ(failure_of(child), "the child died of signal 9");
  EXPECT_EQ(bytes_of(folder / "x"), "old");
}

TEST(Atomic, a_process_killed_at_any_time_leaves_a_whole_file) {
  const TemporaryFolder folder;
  save_npy(folder / "x.npy", strided());
  for (int round = 0; round < 20; ++round) {
    const pid_t child = fork();
    if (child == 0)
      for (;;) {
        save_npy(folder / "x.npy", small());
        save_npy(folder / "x.npy", strided());
      }
    std::this_thread::sleep_for(std::chrono::microseconds(500 + 700 * round));
    ::kill(child, SIGKILL);
    EXPECT_EQ(failure_of(child), "the child died of signal 9");
    const Tensor read = load_npy(folder / "x.npy");
    EXPECT_TRUE(difference(read, small()).empty() || difference(read, strided()).empty());
  }
}

TEST(Atomic, threads_that_save_the_same_file_leave_one_of_theirs) {
  const TemporaryFolder folder;
  std::vector<std::thread> threads;
  for (int n = 0; n < 4; ++n)
    threads.emplace_back([&, n] {
      for (int round = 0; round < 10; ++round) save_npy(folder / "x.npy", Tensor({n}, {1}));
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_LT(load_npy(folder / "x.npy").at<std::int32_t>({0}), 4);
  EXPECT_EQ(folder.listing(), "x.npy");
}

// ---- Names, links and rights -------------------------------------------------------------------

TEST(Paths, a_file_beside_the_program_needs_no_folder_in_its_path) {
  const TemporaryFolder folder;
  const fs::path before = fs::current_path();
  fs::current_path(folder.path());
  const std::string error = error_of([] { save_npy("x.npy", small()); });
  fs::current_path(before);
  EXPECT_EQ(error, "nothing");
  EXPECT_EQ(folder.listing(), "x.npy");
}

TEST(Paths, the_longest_name_can_be_written) {
  const TemporaryFolder folder;
  save_npy(folder / std::string(255, 'x'), small());
  EXPECT_EQ(difference(load_npy(folder / std::string(255, 'x')), small()), "");
  EXPECT_NE(error_of([&] {
              save_npy(folder / std::string(256, 'x'), small());
            }).find("cannot be written: File name too long"),
            std::string::npos);
}

TEST(Paths, a_link_stays_a_link) {
  const TemporaryFolder folder;
  fs::create_directory(folder / "data");
  write_bytes(folder / "data/x.npy", "old");
  fs::create_symlink("data/x.npy", folder / "link");
  fs::create_symlink("link", folder / "link_to_link");
  fs::create_symlink("data/new.npy", folder / "link_to_nothing");
  save_npy(folder / "link_to_link", small());
  save_npy(folder / "link_to_nothing", small());
  EXPECT_TRUE(fs::is_symlink(folder / "link") && fs::is_symlink(folder / "link_to_link"));
  EXPECT_TRUE(fs::is_symlink(folder / "link_to_nothing"));
  EXPECT_EQ(difference(load_npy(folder / "data/x.npy"), small()), "");
  EXPECT_EQ(difference(load_npy(folder / "data/new.npy"), small()), "");
  EXPECT_EQ(folder.listing(), "data link link_to_link link_to_nothing");
}

TEST(Rights, those_of_the_old_file_are_kept_and_a_new_one_has_the_usual) {
  const TemporaryFolder folder;
  const auto mode = [&](std::string_view name) {
    struct stat status {};
    ::stat((folder / name).c_str(), &status);
    return status.st_mode & 07777U;
  };
  write_bytes(folder / "old", "old");
  fs::permissions(folder / "old", static_cast<fs::perms>(0640));
  save_npy(folder / "old", small());
  EXPECT_EQ(mode("old"), 0640U);
  write_bytes(folder / "usual", "");
  save_npy(folder / "new", small());
  EXPECT_EQ(mode("new"), mode("usual"));
}

// Without the rights of root while it lives.
class Nobody {
 public:
  Nobody() {
    if (root_ && ::seteuid(65534) != 0) throw std::runtime_error("seteuid");
  }
  ~Nobody() {
    if (root_) (void)!::seteuid(0);
  }
  Nobody(const Nobody&) = delete;
  Nobody& operator=(const Nobody&) = delete;

 private:
  bool root_ = ::geteuid() == 0;
};

TEST(Rights, what_is_forbidden_is_refused_and_untouched) {
  const TemporaryFolder folder;
  write_bytes(folder / "x", "old");
  const auto allow = [&](const fs::path& path, int rights) {
    fs::permissions(path, static_cast<fs::perms>(rights));
  };
  const auto error = [&](auto call) {
    const Nobody nobody;
    const std::string what = error_of(call);
    return what.substr(what.rfind(": ", what.rfind(": ") - 1) + 2);
  };
  allow(folder / "x", 0444);
  allow(folder.path(), 0777);
  EXPECT_EQ(error([&] { save_npy(folder / "x", small()); }),
            "cannot be written: Permission denied");
  allow(folder / "x", 0);
  EXPECT_EQ(error([&] { load_npy(folder / "x"); }), "cannot be opened: Permission denied");
  allow(folder / "x", 0666);
  allow(folder.path(), 0555);
  EXPECT_EQ(
      error([&] { save_npy(folder / "x", small()); }),
      "no file can be made in the folder '" + folder.path().string() + "': Permission denied");
  allow(folder.path(), 0700);
  EXPECT_EQ(bytes_of(folder / "x"), "old");
  EXPECT_EQ(folder.listing(), "x");
}

}  // namespace
}  // namespace attend::test
