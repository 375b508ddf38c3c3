// What the tests of files share: folders that vanish, bytes in and out, tensors to compare.
#pragma once

#include "io/file.h"

#include <attend/tensor.h>

#include <stdlib.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace attend::test {

namespace fs = std::filesystem;

inline constexpr DType kAllTypes[] = {DType::f64, DType::f32, DType::bf16,
                                      DType::f16, DType::i64, DType::i32,
                                      DType::i8,  DType::u8,  DType::boolean};

inline const std::vector<Shape>& file_shapes() {
  static const std::vector<Shape> shapes = {
      {},     {1},       {7},       {0},       {0, 3},          {3, 0, 2},
      {2, 3}, {1, 1, 1}, {5, 1, 4}, {300, 70}, {2, 3, 4, 5, 6}, {2, 1, 3, 1, 2, 1, 1, 2}};
  return shapes;
}

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (fs::temp_directory_path() / "attend_test_XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder");
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code error;
    fs::permissions(path_, fs::perms::owner_all, error);
    fs::remove_all(path_, error);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const fs::path& path() const { return path_; }
  fs::path operator/(std::string_view name) const { return path_ / name; }

  // The names in it, sorted, in one line.
  std::string listing() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(path_))
      names.push_back(entry.path().filename().string());
    std::sort(names.begin(), names.end());
    std::string line;
    for (const std::string& name : names) line += (line.empty() ? "" : " ") + name;
    return line;
  }

 private:
  fs::path path_;
};

inline std::string bytes_of(const fs::path& path) {
  std::ostringstream bytes;
  bytes << std::ifstream(path, std::ios::binary).rdbuf();
  return bytes.str();
}

inline void write_bytes(const fs::path& path, std::string_view bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!file.flush()) throw std::runtime_error("cannot write " + path.string());
}

struct MemorySink final : Sink {
  void write(const void* from, std::size_t count) override {
    bytes.append(static_cast<const char*>(from), count);
  }
  std::string bytes;
};

// "FileError: load_npy: ...", or "nothing".
template <class Call>
std::string error_of(Call&& call) {
  try {
    call();
  } catch (const FileError& error) {
    return std::string("FileError: ") + error.what();
  } catch (const InvalidArgument& error) {
    return std::string("InvalidArgument: ") + error.what();
  } catch (const OutOfMemory& error) {
    return std::string("OutOfMemory: ") + error.what();
  } catch (const Unsupported& error) {
    return std::string("Unsupported: ") + error.what();
  } catch (const std::exception& error) {
    return std::string("another exception: ") + error.what();
  }
  return "nothing";
}

// Any bits, and for bool 0 or 1.
inline Tensor random_tensor(const Shape& shape, DType type, unsigned seed = 1) {
  std::mt19937 random(seed);
  Tensor tensor(shape, type);
  auto* bytes = static_cast<unsigned char*>(tensor.view().data());
  for (std::int64_t n = 0; n < tensor.count() * size_of(type); ++n)
    bytes[n] = static_cast<unsigned char>(random() & (type == DType::boolean ? 1U : 255U));
  return tensor;
}

// "" or how two tensors differ: in type, shape or any bit.
inline std::string difference(const ConstTensorView& a, const ConstTensorView& b) {
  const auto kind = [](const ConstTensorView& t) {
    return t ? text(t.dtype(), " ", t.shape()) : std::string("none");
  };
  if (kind(a) != kind(b)) return kind(a) + " is not " + kind(b);
  if (!a) return "";
  const Tensor x = Tensor::copy_of(a), y = Tensor::copy_of(b);
  const auto bytes = static_cast<std::size_t>(x.count() * size_of(x.dtype()));
  const bool same = bytes == 0 || std::memcmp(x.view().data(), y.view().data(), bytes) == 0;
  return same ? "" : kind(a) + " differ in their elements";
}

// The same sizes seen in every way that strides allow.
struct StridedView {
  const char* name;
  ConstTensorView view;
};

inline std::vector<StridedView> strided_views(const Tensor& t) {  // of four dimensions
  const ConstTensorView v = t.view();
  const std::int64_t last = v.size(3);
  return {{"contiguous", v},
          {"permuted", v.permute({0, 2, 1, 3})},
          {"transposed", v.permute({3, 2, 1, 0})},
          {"every_second", v.slice(3, 0, last, 2)},
          {"backwards", v.slice(3, last - 1, -1, -1).slice(0, v.size(0) - 1, -1, -1)},
          {"one_of_a_dimension", v.slice(1, 1, 2)},
          {"none_of_a_dimension", v.slice(2, 1, 1)},
          {"broadcast", v.slice(0, 0, 1).broadcast_to({5, v.size(1), v.size(2), last})},
          {"of_a_large_stride",
           ConstTensorView(v.data(), v.dtype(), {1, 2}, {std::int64_t{1} << 62, 1})}};
}

}  // namespace attend::test
