// Bytes in and out. A reader of a format reads from a Source and a writer writes to a Sink, and so
// both can be tested on memory; FileSource and AtomicFile are those of the public functions.
#pragma once

#include "core/printable.h"
#include "core/text.h"

#include <attend/error.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <new>
#include <string>
#include <string_view>
#include <utility>

namespace attend {

// A file of known size that is read at any place.
class Source {
 public:
  virtual ~Source() = default;
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;

  std::uint64_t size() const noexcept { return size_; }
  // `count` bytes from `offset`. That they are inside the file is for the caller to know.
  virtual void read(std::uint64_t offset, void* to, std::size_t count) const = 0;
  std::string read_text(std::uint64_t offset, std::size_t count) const;

  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    throw FileError(text(where_, ": ", parts...));
  }

 protected:
  explicit Source(std::string where) : where_(std::move(where)) {}
  std::uint64_t size_ = 0;

 private:
  std::string where_;  // "load_npy: x.npy"
};

class MemorySource final : public Source {
 public:
  MemorySource(std::string_view where, std::string_view bytes)
      : Source(std::string(where)), bytes_(bytes) {
    size_ = bytes.size();
  }
  void read(std::uint64_t offset, void* to, std::size_t count) const override;

 private:
  std::string_view bytes_;
};

class FileSource final : public Source {
 public:
  FileSource(std::string_view function, const std::filesystem::path& path);
  ~FileSource() override;
  void read(std::uint64_t offset, void* to, std::size_t count) const override;

 private:
  void open(const std::filesystem::path& path);
  int descriptor_ = -1;
};

// Where bytes are appended.
class Sink {
 public:
  virtual ~Sink() = default;
  Sink() = default;
  Sink(const Sink&) = delete;
  Sink& operator=(const Sink&) = delete;

  virtual void write(const void* bytes, std::size_t count) = 0;
};

// A file that appears whole, by commit(), or not at all. It keeps the permissions of the file that
// it replaces, and a symbolic link stays one.
class AtomicFile final : public Sink {
 public:
  AtomicFile(std::string_view function, const std::filesystem::path& path);
  ~AtomicFile() override;  // without commit() nothing remains
  void write(const void* bytes, std::size_t count) override;
  void commit();

 private:
  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    throw FileError(text(where_, ": ", parts...));
  }
  void find_target(const std::filesystem::path& path);
  void make_temporary();

  std::string where_;  // "save_npy: x.npy"
  std::filesystem::path target_, folder_, temporary_;
  unsigned permissions_ = 0;  // of the file that is replaced
  bool replaces_ = false;
  int descriptor_ = -1;
};

// Throws a FileError that begins with `where` if not everything can be written.
void write_all(const std::string& where, int descriptor, const void* bytes, std::size_t count);

// Runs a reader or writer; what the standard library has no memory for is an OutOfMemory as well.
template <class Work>
auto with_memory_errors(std::string_view function, const std::filesystem::path& path, Work work) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    throw OutOfMemory(text(function, ": ", printable(path.native()), ": no memory for the header"));
  }
}

}  // namespace attend
