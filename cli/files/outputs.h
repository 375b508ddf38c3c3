// The files that a command writes: all of them, or none. They are written beside their places
// first, under other names, and put there when every one is whole; where one cannot be put, those
// before it are taken back. Ctrl-C waits for that. None may be a file that the command reads.
#pragma once

#include <attend/io.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace attend::cli {

class Flags;

class Outputs {
 public:
  Outputs() = default;  // of a command that reads no files
  // Files that the command's other flags name are read.
  Outputs(const Flags& flags, const std::vector<std::string>& flags_of_outputs);

  // A place for a tensor, "y.npy" or "r.safetensors:y"; more than one may go into one safetensors
  // file. Without a name the tensor is called `name`. Throws at once where nothing can be written,
  // before any work is done. An empty text is no place.
  void reserve(const std::string& text, const std::string& name, DType type);

  // The tensor for the place reserved under `name`. It must live until write().
  void put(const std::string& name, const ConstTensorView& tensor);

  // A file that somebody else knows how to write. If it is never put, it is not written here.
  using Writer = std::function<void(const std::filesystem::path&)>;
  // It may replace the file that the flag `instead` named.
  void reserve_file(const std::string& path, const std::string& instead = {});
  void put_file(const std::string& path, Writer writer);

  void write() const;
  std::vector<std::string> paths() const;

 private:
  struct Entry {
    std::string reserved;  // the name that put() knows
    NamedView tensor;
  };
  struct File {
    std::string path;
    bool npy = true, whole = false;  // whole: the writer's, not made of entries
    std::vector<Entry> entries;
    Writer writer;
  };
  struct Input {
    std::string flag, path;
  };
  std::vector<File>::iterator find(const std::string& path);
  void check_inputs(const std::string& path, const std::string& instead) const;

  std::vector<File> files_;
  std::vector<Input> inputs_;
};

}  // namespace attend::cli
