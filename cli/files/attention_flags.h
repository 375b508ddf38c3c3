// AttentionOptions as flags: one for each of its fields.
#pragma once

#include <attend/options.h>
#include <attend/tensor.h>

#include <map>
#include <string>
#include <vector>

namespace attend::cli {

class Flags;

struct AttentionFlags {
  // A file, or numbers in the flag itself if they are allowed.
  struct Source {
    enum class Form { file, whole_numbers, numbers };
    Form form = Form::file;
    std::string text;
  };
  AttentionOptions options{};             // numbers, without tensors
  std::map<std::string, Source> tensors;  // by the name of the option
  std::int64_t dropout_offset = 0;
  std::string dropout_origin;

  bool gives(const std::string& tensor) const {
    const auto found = tensors.find(tensor);
    return found != tensors.end() && !found->second.text.empty();
  }
};

inline constexpr const char* kAttentionGroup = "Options of attention";
void add_attention_flags(const Flags& flags, AttentionFlags& attention);

// The options with the tensors that they show. Bias, alibi and sinks are turned into what a call of
// `type` takes if `convert`; lists of numbers always are.
struct LoadedOptions {
  AttentionOptions options{};
  std::vector<Tensor> tensors{};
};
LoadedOptions load_options(const AttentionFlags& flags, DType type, bool convert,
                           std::uint64_t seed);

// The type of lse, sinks and alibi: f32, of f64 tensors f64.
DType statistics_type(DType type);

}  // namespace attend::cli
