// Tensors as the command meets them: named by files, by short lists, or drawn from a seed; turned
// into other types on request; and told about in a few numbers.
#pragma once

#include <attend/io.h>
#include <attend/tensor.h>

#include <optional>
#include <string>

namespace attend::cli {

class Flag;
class Flags;
class Json;

// "x.npy", or "layer.safetensors:name"; without a name the file must hold one tensor.
Tensor load_tensor(const std::string& source);

// The tensors of a safetensors file; an npy file in its place is refused with what to do instead.
TensorFile load_file(const std::string& path, const std::string& instead_of_npy);

// The same, or a list of numbers: "3,5,2" as i64, "0.5,-1" as `type` where one is given.
Tensor load_list(const std::string& source, std::optional<DType> type = {});

// A flag that takes such a list, or a file.
Flag add_list(Flags& flags, const std::string& name, std::string& value, bool real,
              const std::string& description);

// The bytes of a text file, or of a pipe; at most a GiB.
std::string read_text(const std::string& path);

// A floating-point tensor in another type, each number rounded once; others as they are.
Tensor converted(Tensor tensor, DType type);

// Numbers of mean 0 and variance 1, the same on every machine. Tensors of one seed differ by their
// stream.
Tensor drawn(const Shape& shape, DType type, std::uint64_t seed, std::uint64_t stream);

// A file that --output and its like may name: path and, in safetensors, the tensor's name.
struct TensorPlace {
  std::string path, name;
  bool npy = true;
};
TensorPlace place_of(const std::string& text);

// ---- telling -----------------------------------------------------------------------------------

struct Summary {
  double min = 0, max = 0, mean = 0;  // of the finite numbers
  std::int64_t not_finite = 0;
  std::string checksum;  // of the bytes, FNV-1a in 64 bits
};
Summary summary_of(const Tensor& tensor);

Json json_of(const Tensor& tensor, const Summary& summary);  // with its values, if they are few
std::string text_of(const Tensor& tensor, const Summary& summary);
void print_values(const Tensor& tensor);  // a row a line
bool is_small(const Tensor& tensor);

}  // namespace attend::cli
