// Tensors in files: NumPy's `.npy`, which holds one, and `safetensors`, which holds many with
// names. The readers are strict: a file that breaks a rule of its format is refused with a
// FileError that names the path, the rule and what was found, before memory of the size it claims
// is allocated. The writers write a file whole or not at all: into a temporary one beside it
// (".attend-..."), which then takes its place. Until then, and if anything fails, an existing file
// stays as it was. Host memory only.
#pragma once

#include <attend/tensor.h>

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace attend {

// `.npy`, versions 1.0, 2.0 and 3.0, in C or Fortran order, little-endian. A loaded tensor is
// contiguous. NumPy has no bf16: bf16 tensors are for safetensors.
ATTEND_API Tensor load_npy(const std::filesystem::path& path);
ATTEND_API void save_npy(const std::filesystem::path& path, const ConstTensorView& tensor);

struct NamedTensor {
  std::string name;
  Tensor tensor;
};

struct NamedView {
  std::string name;
  TensorOrView tensor;
};

using Metadata = std::map<std::string, std::string>;

// What a safetensors file holds.
struct ATTEND_API TensorFile {
  std::vector<NamedTensor> tensors;  // in the order of the file's header
  Metadata metadata;
  std::filesystem::path path;  // where it came from, for messages

  const Tensor* find(std::string_view name) const noexcept;  // null if it is not there
  const Tensor& at(std::string_view name) const;             // the error lists what is there
};

ATTEND_API TensorFile load_safetensors(const std::filesystem::path& path);

// The header keeps the order of `tensors`; their data is put in order of element size, so that each
// tensor is aligned in the file, which some readers need. Names and metadata are UTF-8.
ATTEND_API void save_safetensors(const std::filesystem::path& path,
                                 const std::vector<NamedView>& tensors,
                                 const Metadata& metadata = {});

// Any bytes, written whole or not at all like the files above.
ATTEND_API void save_bytes(const std::filesystem::path& path, std::string_view bytes);

}  // namespace attend
