#include "outputs.h"

#include "frame/flags.h"
#include "frame/signals.h"
#include "frame/usage_error.h"
#include "tensors.h"

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

constexpr int kMaxLinks = 40;  // as many as the kernel follows

// The file that a path leads to, be it there or not: a link stays a link, and one that leads
// nowhere yet gets its file. One name for each file: ./y.npy and y.npy are the same.
fs::path target_of(const std::string& path) {
  std::error_code error;
  fs::path target = fs::absolute(path, error);
  for (int link = 0; link < kMaxLinks && fs::is_symlink(target, error); ++link) {
    const fs::path next = fs::read_symlink(target, error);
    if (error) break;
    target = target.parent_path() / next;
  }
  const fs::path folder = fs::weakly_canonical(target.parent_path(), error);
  return error ? target : folder / target.filename();
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
  if (::access(folder.c_str(), W_OK | X_OK) != 0) cannot_write(path, reason());
}

// Files under their other names, until all of them take their places. What is still under another
// name at the end goes away.
class Staged {
 public:
  Staged() {
    live_ = this;
    set_clean_up([] {
      for (const Move& move : live_->moves_) ::unlink(move.stage.c_str());
    });
  }
  Staged(const Staged&) = delete;
  Staged& operator=(const Staged&) = delete;
  ~Staged() {
    set_clean_up(nullptr);
    std::error_code ignored;
    for (const Move& move : moves_) fs::remove(move.stage, ignored);
  }
  fs::path stage(const std::string& path) {
    const fs::path target = target_of(path), folder = target.parent_path();
    const std::string name = ".attend-" + std::to_string(::getpid()) + "-";
    const std::string number = std::to_string(moves_.size());
    moves_.push_back(
        {folder / (name + "stage" + number), folder / (name + "old" + number), target});
    return moves_.back().stage;
  }
  // Puts every file in its place, or leaves all places as they were.
  void commit() {
    std::size_t done = 0;
    std::error_code error, ignored;
    while (done < moves_.size() && put(moves_[done], error)) ++done;
    if (error) {
      for (std::size_t n = 0; n < done; ++n) take_back(moves_[n]);
      cannot_write(moves_[done].target.string(), error.message());
    }
    for (const Move& move : moves_) fs::remove(move.old, ignored);
    moves_.clear();
  }

 private:
  struct Move {
    fs::path stage, old, target;  // `old`: the older file, while it may be wanted back
    bool replaces = false;
  };

  // A second name keeps the older file, so that there is one at its place all the time. Where the
  // file system has no second names, it is moved away.
  static bool put(Move& move, std::error_code& error) {
    std::error_code ignored;
    const fs::file_status older = fs::status(move.target, ignored);
    if (fs::is_regular_file(older)) {
      fs::permissions(move.stage, older.permissions(), ignored);
      fs::create_hard_link(move.target, move.old, error);
      if (error) fs::rename(move.target, move.old, error);
      if (error) return false;
      move.replaces = true;
    }
    fs::rename(move.stage, move.target, error);
    if (error && move.replaces) take_back(move);
    return !error;
  }
  static void take_back(const Move& move) {
    std::error_code error;
    if (!move.replaces) fs::remove(move.target, error);
    else if (fs::rename(move.old, move.target, error); !error)
      fs::remove(move.old, error);  // it stays where both were names of one file
  }

  inline static const Staged* live_ = nullptr;  // one at a time
  std::vector<Move> moves_;
};

}  // namespace

Outputs::Outputs(const Flags& flags, const std::vector<std::string>& flags_of_outputs) {
  const auto contains = [](const std::vector<std::string>& list, const std::string& word) {
    return std::find(list.begin(), list.end(), word) != list.end();
  };
  for (const FlagInfo& flag : flags.all()) {
    const bool files = flag.positional || flag.value.starts_with("FILE");
    if (!files || contains(flags_of_outputs, flag.name)) continue;
    for (const std::string& text : flag.given) {
      if (contains(flag.words, text)) continue;  // a subject of `attend explain`, no file
      inputs_.push_back({flag.name, text});
      if (const std::size_t at = text.rfind(".safetensors:"); at != std::string::npos)
        inputs_.push_back({flag.name, text.substr(0, text.find(':', at))});
    }
  }
}

void Outputs::check_inputs(const std::string& path, const std::string& instead) const {
  std::error_code none;  // of two files one of which is not there
  for (const Input& input : inputs_)
    if (input.flag != instead && fs::equivalent(path, input.path, none))
      throw UsageError(path + " would replace the input " + input.path +
                       "; give the output another name");
}

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
  check_inputs(place.path, "");
  check_writable(place.path);
  auto file = find(place.path);
  if (file == files_.end()) file = files_.insert(file, {place.path, place.npy, false, {}, {}});
  const std::string inside = place.name.empty() ? name : place.name;
  if (inside == "__metadata__")  // the key of the metadata in the file's header
    throw UsageError(text + ": no tensor can be named __metadata__");
  const bool taken = std::any_of(file->entries.begin(), file->entries.end(), [&](const Entry& e) {
    return place.npy || e.tensor.name == inside;
  });
  if (taken || file->whole) throw UsageError(text + " is to be written twice");
  file->entries.push_back({name, {inside, {}}});
}

void Outputs::put(const std::string& name, const ConstTensorView& tensor) {
  for (File& file : files_)
    for (Entry& entry : file.entries)
      if (entry.reserved == name) entry.tensor.tensor = tensor;
}

void Outputs::reserve_file(const std::string& path, const std::string& instead) {
  if (path.empty()) return;
  check_inputs(path, instead);
  check_writable(path);
  if (find(path) != files_.end()) throw UsageError(path + " is to be written twice");
  files_.push_back({path, false, true, {}, {}});
}

void Outputs::put_file(const std::string& path, Writer writer) {
  if (!path.empty()) find(path)->writer = std::move(writer);
}

void Outputs::write() const {
  const HeldSignals signals;
  const auto end_if_asked = [&] {
    if (signals.waiting()) throw UsageError("interrupted; no file was written");
  };
  Staged staged;
  for (const File& file : files_) {
    if (file.whole && !file.writer) continue;
    end_if_asked();
    const fs::path stage = staged.stage(file.path);
    const auto in_place = [&](std::string message) {  // the user knows the file by its own name
      if (const std::size_t at = message.find(stage.string()); at != std::string::npos)
        message.replace(at, stage.string().size(), file.path);
      return message;
    };
    try {
      std::vector<NamedView> tensors;
      for (const Entry& entry : file.entries) tensors.push_back(entry.tensor);
      if (file.writer) file.writer(stage);
      else if (file.npy) save_npy(stage, tensors[0].tensor);
      else save_safetensors(stage, tensors);
    } catch (const FileError& error) {
      throw FileError(in_place(error.what()));
    } catch (const InvalidArgument& error) {
      throw InvalidArgument(in_place(error.what()));
    }
  }
  end_if_asked();
  staged.commit();
}

std::vector<std::string> Outputs::paths() const {
  std::vector<std::string> list;
  for (const File& file : files_) list.push_back(file.path);
  return list;
}

}  // namespace attend::cli
