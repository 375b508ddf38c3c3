// A block's file: its parameters under their names, its options in the metadata.
#include <attend/block.h>

#include "core/printable.h"
#include "core/reporting.h"
#include "core/text.h"
#include "layer/check.h"
#include "layer/metadata.h"
#include "layer/multi_head_attention.h"
#include "layer/multi_head_options.h"
#include "layer/option_names.h"

namespace attend {
namespace {

// The file must hold matrices of the sizes that its metadata claims, before any are made.
void check_matrices(const TensorFile& file, const AttentionBlockOptions& options) {
  const MultiHeadAttentionOptions o = filled_in(options.attention);
  const auto expect = [&](bool wanted, const char* name, std::int64_t out, std::int64_t in) {
    const Tensor* const found = wanted ? &file.at(name) : nullptr;
    if (found != nullptr && found->shape() != Shape{out, in})
      throw FileError(text("attention_block: ", place_of(file), name, " is ", found->shape(),
                           "; by the metadata it must be ", Shape{out, in}));
  };
  expect(true, "attention.q.weight", o.heads * o.d_k, o.model_dim);
  expect(true, "attention.k.weight", o.key_heads * o.d_k, o.key_dim);
  expect(true, "attention.v.weight", o.key_heads * o.d_v, o.value_dim);
  expect(o.output_projection, "attention.o.weight", o.model_dim, o.heads * o.d_v);
  expect(options.cross, "cross.k.weight", o.key_heads * o.d_k, options.memory_dim);
  expect(options.hidden_dim > 0, "feed_forward.up.weight", options.hidden_dim, o.model_dim);
}

}  // namespace

void AttentionBlock::save(const std::filesystem::path& path) const {
  reporting("attention_block", [&] {
    check_made("attention_block", static_cast<bool>(*this));
    Metadata metadata{{"format", "attend.attention_block"}, {"layout", "fused [out, in]"}};
    write_options(metadata, "attention.", options_.attention);
    metadata["cross"] = options_.cross ? "true" : "false";
    metadata["memory_dim"] = std::to_string(options_.memory_dim);
    metadata["hidden_dim"] = std::to_string(options_.hidden_dim);
    metadata["activation"] = kActivations[static_cast<int>(options_.activation)];
    metadata["placement"] = kPlacements[static_cast<int>(options_.placement)];
    metadata["norm"] = kNorms[static_cast<int>(options_.norm)];
    metadata["epsilon"] = digits(options_.epsilon);
    save_safetensors(path, parameters(), metadata);
  });
}

AttentionBlock AttentionBlock::load(const std::filesystem::path& path) {
  return reporting("attention_block", [&] {
    const TensorFile file = load_safetensors(path);
    const MetadataReader reader(file);
    reader.format_is("attend.attention_block");
    const AttentionBlockOptions options{
        .attention = read_options(reader, "attention."),
        .cross = reader.boolean("cross"),
        .memory_dim = reader.integer("memory_dim"),
        .hidden_dim = reader.integer("hidden_dim"),
        .activation = static_cast<Activation>(reader.choice("activation", kActivations)),
        .placement = static_cast<NormPlacement>(reader.choice("placement", kPlacements)),
        .norm = static_cast<NormKind>(reader.choice("norm", kNorms)),
        .epsilon = reader.number("epsilon")};
    try {
      check_matrices(file, options);
      AttentionBlock block(options);
      if (file.at("attention.q.weight").dtype() == DType::i8) block = block.quantize();
      load_parameters(file, block.writable_parameters());
      return block;
    } catch (const InvalidArgument& error) {  // the file's fault, not the caller's
      throw FileError(printable(text("attention_block: ", path.string(), ": ", error.what())));
    }
  });
}

}  // namespace attend
