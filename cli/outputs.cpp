#include "outputs.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>

namespace attend::cli {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void cannot_write(const std::string& path, const std::string& why) {
  throw FileError(path + ": cannot be written: " + why);
}

std::string reason() { return std::generic_category().message(errno); }

// What the path leads to, so that a link stays a link.
fs::path target_of(const std::string& path) {
  std::error_code error;
  const fs::path target = fs::weakly_canonical(path, error);
  return error ? fs::path(path) : target;
}

void check_writable(const std::string& path) {
  const fs::path target = target_of(path), folder = target.parent_path();
  std::error_code error;
  const fs::file_status status = fs::status(target, error);
  if (status.type() == fs::file_type::none) cannot_write(path, error.message());
  if (fs::is_directory(status)) cannot_write(path, "it is a folder");
  if (fs::exists(status) && !fs::is_regular_file(status))
    cannot_write(path, "it is no regular file");
  if (fs::exists(status) && ::access(target.c_str(), W_OK) != 0) cannot_write(path, reason());
  if (!folder.empty() && ::access(folder.c_str(), W_OK | X_OK) != 0) cannot_write(path, reason());
}

// Files under their other names; what is still there at the end goes away.
class Staged {
 public:
  ~Staged() {
    std::error_code ignored;
    for (const auto& [from, to] : moves_) fs::remove(from, ignored);
  }
  fs::path stage(const std::string& path) {
    const fs::path target = target_of(path);
    const std::string name =
        ".attend-" + std::to_string(::getpid()) + "-stage" + std::to_string(moves_.size());
    moves_.emplace_back(target.parent_path() / name, target);
    return moves_.back().first;
  }
  void commit() {
    for (const auto& [from, to] : moves_) {
      std::error_code error;
      const fs::file_status old = fs::status(to, error);
      if (fs::exists(old)) fs::permissions(from, old.permissions(), error);
      fs::rename(from, to, error);
      if (error) cannot_write(to.string(), error.message());
    }
    moves_.clear();
  }

 private:
  std::vector<std::pair<fs::path, fs::path>> moves_;
};

}  // namespace

std::vector<Outputs::File>::iterator Outputs::find(const std::string& path) {
  const fs::path target = target_of(path);
  return std::find_if(files_.begin(), files_.end(),
                      [&](const File& file) { return target_of(file.path) == target; });
}

void Outputs::reserve(const std::string& text, const std::string& name, DType type) {
  if (text.empty()) return;
  const TensorPlace place = place_of(text);
  if (place.npy && type == DType::bf16)
    throw UsageError(text + ": .npy has no bf16; write to .safetensors, or give --type f32");
  check_writable(place.path);
  auto file = find(place.path);
  if (file == files_.end()) file = files_.insert(file, {place.path, place.npy, {}, {}});
  const std::string inside = place.name.empty() ? name : place.name;
  const bool taken = std::any_of(file->entries.begin(), file->entries.end(), [&](const Entry& e) {
    return place.npy || e.tensor.name == inside;
  });
  if (taken || file->writer) throw UsageError(text + " is to be written twice");
  file->entries.push_back({name, {inside, {}}});
}

void Outputs::put(const std::string& name, const ConstTensorView& tensor) {
  for (File& file : files_)
    for (Entry& entry : file.entries)
      if (entry.reserved == name) entry.tensor.tensor = tensor;
}

void Outputs::reserve_file(const std::string& path) {
  if (path.empty()) return;
  if (!path.ends_with(".safetensors")) throw UsageError("'" + path + "' must end in .safetensors");
  check_writable(path);
  if (find(path) != files_.end()) throw UsageError(path + " is to be written twice");
  files_.push_back({path, false, {}, [](const fs::path&) {}});
}

void Outputs::put_file(const std::string& path, Writer writer) {
  if (!path.empty()) find(path)->writer = std::move(writer);
}

void Outputs::write() const {
  Staged staged;
  for (const File& file : files_) {
    const fs::path stage = staged.stage(file.path);
    try {
      std::vector<NamedView> tensors;
      for (const Entry& entry : file.entries) tensors.push_back(entry.tensor);
      if (file.writer) file.writer(stage);
      else if (file.npy) save_npy(stage, tensors[0].tensor);
      else save_safetensors(stage, tensors);
    } catch (const FileError& error) {  // the user knows the file by its own name
      std::string message = error.what();
      if (const std::size_t at = message.find(stage.string()); at != std::string::npos)
        message.replace(at, stage.string().size(), file.path);
      throw FileError(message);
    }
  }
  staged.commit();
}

std::vector<std::string> Outputs::paths() const {
  std::vector<std::string> list;
  for (const File& file : files_) list.push_back(file.path);
  return list;
}

}  // namespace attend::cli
