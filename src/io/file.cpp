// Files by the system's own calls: C++ streams can neither sync a file nor say why they failed.
#include "io/file.h"

#include <attend/io.h>

#include <fcntl.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): sigset_t is not in <csignal>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <system_error>

namespace attend {
namespace {

namespace fs = std::filesystem;

constexpr int kMaxLinks = 40;       // as many as the kernel follows
constexpr int kMaxAttempts = 1000;  // names of a temporary file

std::string reason(int error) { return std::generic_category().message(error); }

std::string where(std::string_view function, const fs::path& path) {
  return text(function, ": ", printable(path.native()));
}

void check_name(std::string_view function, const fs::path& path) {
  if (path.empty()) throw FileError(text(function, ": the name of the file is empty"));
}

// What a path leads to, be it there or not.
fs::path without_links(fs::path path) {
  std::error_code error;
  for (int link = 0; link < kMaxLinks && fs::is_symlink(fs::symlink_status(path, error)); ++link) {
    const fs::path next = fs::read_symlink(path, error);
    if (error) break;
    path = path.parent_path() / next;
  }
  return path;
}

// Past the limit on the size of files (ulimit -f) the system ends a process by SIGXFSZ, and what
// was written so far would stay. While this lives the write fails instead, as on a full disk. The
// signal comes to the thread that writes: nobody else's is held.
class HeldSizeSignal {
 public:
  HeldSizeSignal() {
    ::sigemptyset(&set_);
    ::sigaddset(&set_, SIGXFSZ);
    ::pthread_sigmask(SIG_BLOCK, &set_, &before_);
  }
  ~HeldSizeSignal() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  HeldSizeSignal(const HeldSizeSignal&) = delete;
  HeldSizeSignal& operator=(const HeldSizeSignal&) = delete;

  // Takes the signal of a write that failed; one that the caller held back before stays the
  // caller's.
  void take() const {
    const timespec none{};
    if (::sigismember(&before_, SIGXFSZ) == 0)
      while (::sigtimedwait(&set_, nullptr, &none) < 0 && errno == EINTR) continue;
  }

 private:
  sigset_t set_{}, before_{};
};

}  // namespace

// ---- Reading -----------------------------------------------------------------------------------

std::string Source::read_text(std::uint64_t offset, std::size_t count) const {
  std::string bytes(count, '\0');
  read(offset, bytes.data(), count);
  return bytes;
}

void MemorySource::read(std::uint64_t offset, void* to, std::size_t count) const {
  if (count > 0) std::memcpy(to, bytes_.data() + offset, count);
}

FileSource::FileSource(std::string_view function, const fs::path& path)
    : Source(where(function, path)) {
  check_name(function, path);
  open(path);
}

void FileSource::open(const fs::path& path) {
  if (path.native().find('\0') != std::string::npos) fail("the path holds a NUL character");
  // Without O_NONBLOCK the opening of a pipe would wait for a writer.
  descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor_ < 0) fail("cannot be opened: ", reason(errno));
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0) status = {};
  if (!S_ISREG(status.st_mode)) {
    ::close(descriptor_);
    fail(S_ISDIR(status.st_mode) ? "is a folder, not a file"
                                 : "is not a regular file; its size cannot be known");
  }
  size_ = static_cast<std::uint64_t>(status.st_size);
}

FileSource::~FileSource() { ::close(descriptor_); }

void FileSource::read(std::uint64_t offset, void* to, std::size_t count) const {
  auto* bytes = static_cast<std::byte*>(to);
  while (count > 0) {
    const ssize_t got = ::pread(descriptor_, bytes, count, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail("cannot be read: ", reason(errno));
    if (got == 0) fail("ends at byte ", offset, "; it had ", size(), " bytes when it was opened");
    bytes += got;
    offset += static_cast<std::uint64_t>(got);
    count -= static_cast<std::size_t>(got);
  }
}

// ---- Writing -----------------------------------------------------------------------------------

void write_all(const std::string& where, int descriptor, const void* bytes, std::size_t count) {
  const auto* from = static_cast<const std::byte*>(bytes);
  const HeldSizeSignal held;
  while (count > 0) {
    const ssize_t put = ::write(descriptor, from, count);
    if (put < 0 && errno == EINTR) continue;
    if (const int error = errno; put < 0) {
      if (error == EFBIG) held.take();
      throw FileError(text(where, ": cannot be written: ", reason(error)));
    }
    from += put;
    count -= static_cast<std::size_t>(put);
  }
}

AtomicFile::AtomicFile(std::string_view function, const fs::path& path)
    : where_(where(function, path)) {
  check_name(function, path);
  find_target(path);
  make_temporary();
}

// What is no file must not be replaced by one: /dev/null would become one for everybody.
void AtomicFile::find_target(const fs::path& path) {
  if (path.native().find('\0') != std::string::npos) fail("the path holds a NUL character");
  target_ = without_links(path);
  folder_ = target_.has_parent_path() ? target_.parent_path() : fs::path(".");
  struct stat status {};
  if (::stat(target_.c_str(), &status) != 0) {
    if (errno != ENOENT) fail("cannot be written: ", reason(errno));
    return;
  }
  if (!S_ISREG(status.st_mode))
    fail(S_ISDIR(status.st_mode)
             ? "is a folder, not a file"
             : "is not a regular file; it cannot be written whole or not at all");
  // A rename would not mind, but whoever made the file read-only would.
  if (::faccessat(AT_FDCWD, target_.c_str(), W_OK, AT_EACCESS) != 0)
    fail("cannot be written: ", reason(errno));
  replaces_ = true;
  permissions_ = status.st_mode & 07777U;
}

void AtomicFile::make_temporary() {
  static std::atomic<unsigned> counter = 0;
  for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
    // Short, as the file's own name may already be as long as a name can be.
    temporary_ = folder_ / text(".attend-", ::getpid(), "-", counter++, ".tmp");
    descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor_ >= 0 || errno != EEXIST) break;
  }
  if (descriptor_ < 0)
    fail("no file can be made in the folder ", in_quotes(folder_.native()), ": ", reason(errno));
}

AtomicFile::~AtomicFile() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  ::unlink(temporary_.c_str());
}

void AtomicFile::write(const void* bytes, std::size_t count) {
  write_all(where_, descriptor_, bytes, count);
}

void AtomicFile::commit() {
  // The data must be on the disk before the name is: after a power cut the name may be all there
  // is.
  if ((replaces_ && ::fchmod(descriptor_, permissions_) != 0) || ::fsync(descriptor_) != 0)
    fail("cannot be written: ", reason(errno));
  if (::rename(temporary_.c_str(), target_.c_str()) != 0)
    fail("cannot be put in place: ", reason(errno));
  ::close(descriptor_);
  descriptor_ = -1;
  // The new name too, where the file system can; the file is whole either way.
  const int folder = ::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return;
  ::fsync(folder);
  ::close(folder);
}

void save_bytes(const fs::path& path, std::string_view bytes) {
  with_memory_errors("save_bytes", path, [&] {
    AtomicFile file("save_bytes", path);
    file.write(bytes.data(), bytes.size());
    file.commit();
  });
}

}  // namespace attend
