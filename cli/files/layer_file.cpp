#include "layer_file.h"

#include "frame/flags.h"
#include "tensors.h"

#include <algorithm>

namespace attend::cli {
namespace {

// The library's advice is a field of WeightsFormat; here it is a flag.
template <class Work>
auto in_words_of_flags(Work&& work) {
  try {
    return work();
  } catch (const FileError& error) {
    const std::string field = "output_projection = false";
    std::string message = error.what();
    if (const std::size_t at = message.find(field); at != std::string::npos)
      message.replace(at, field.size(), "--no-output-projection");
    throw FileError(message);
  }
}

}  // namespace

void add_layer_file_flags(Flags flags, LayerFile& file) {
  flags.add_text("--prefix", file.prefix, "Prefix of the tensors' names");
  flags.add_word("--orientation", file.orientation, "Layout of the weight matrices",
                 {"automatic", "out_in", "in_out"});
  flags.add_word("--rotary", file.rotary, "Rotary positions (RoPE), and which features form a pair",
                 {"halves", "neighbours"});
  flags.add_real("--rotary-base", file.rotary_base, {.least = 0, .open = true},
                 "Base of the rotary frequencies");
  flags.add_size("--rotary-dim", file.rotary_dim,
                 "Features that are rotated; all d_k if not given");
  flags.add_switch("--no-output-projection", file.no_output_projection,
                   "No output projection W^O, in the weights' file either");
}

std::optional<Rotary> rotary_of(const LayerFile& file) {
  if (file.rotary.empty()) return std::nullopt;
  return Rotary{file.rotary == "halves" ? Rotary::Pairing::halves : Rotary::Pairing::neighbours,
                file.rotary_base, file.rotary_dim};
}

MultiHeadAttention load_layer(const LayerFile& file, std::optional<DType> type) {
  TensorFile tensors =
      load_file(file.weights, "the weights of a layer are named tensors in safetensors");
  for (NamedTensor& named : tensors.tensors)
    if (type && !named.name.ends_with("_scales"))  // those of weights of 8 bits are f32
      named.tensor = converted(std::move(named.tensor), *type);
  using Orientation = WeightsFormat::Orientation;
  return in_words_of_flags([&] {
    const MultiHeadAttention layer = MultiHeadAttention::load(
        tensors, {.prefix = file.prefix,
                  .heads = file.heads,
                  .key_heads = file.key_heads,
                  .rotary = rotary_of(file),
                  .output_projection = !file.no_output_projection,
                  .orientation = file.orientation == "out_in"   ? Orientation::out_in
                                 : file.orientation == "in_out" ? Orientation::in_out
                                                                : Orientation::automatic});
    return type ? layer.to(*type) : layer;
  });
}

bool holds_weights(const TensorFile& file) {
  return std::any_of(file.tensors.begin(), file.tensors.end(), [](const NamedTensor& named) {
    return named.name.ends_with("weight") && named.tensor.view().rank() == 2;
  });
}

}  // namespace attend::cli
