#include "layer/multi_head_options.h"

#include "layer/option_names.h"

#include "core/text.h"

namespace attend {
namespace {

constexpr std::string_view kPairings[] = {"halves", "neighbours", "none"};
constexpr DType kTypeValues[] = {DType::f64, DType::f32, DType::bf16, DType::f16};

}  // namespace

void write_options(Metadata& metadata, const std::string& prefix,
                   const MultiHeadAttentionOptions& o) {
  const auto put = [&](const char* name, std::string value) {
    metadata[prefix + name] = std::move(value);
  };
  put("model_dim", std::to_string(o.model_dim));
  put("heads", std::to_string(o.heads));
  put("key_heads", std::to_string(o.key_heads));
  put("d_k", std::to_string(o.d_k));
  put("d_v", std::to_string(o.d_v));
  put("key_dim", std::to_string(o.key_dim));
  put("value_dim", std::to_string(o.value_dim));
  put("bias", o.bias ? "true" : "false");
  put("output_projection", o.output_projection ? "true" : "false");
  put("type", std::string(name_of(o.type)));
  put("rotary", std::string(kPairings[o.rotary ? static_cast<int>(o.rotary->pairing) : 2]));
  if (!o.rotary) return;
  put("rotary_base", digits(o.rotary->base));
  put("rotary_dim", std::to_string(o.rotary->dim));
}

MultiHeadAttentionOptions read_options(const MetadataReader& reader, const std::string& prefix) {
  const auto integer = [&](const char* name) { return reader.integer(prefix + name); };
  return {.model_dim = integer("model_dim"),
          .heads = integer("heads"),
          .key_heads = integer("key_heads"),
          .d_k = integer("d_k"),
          .d_v = integer("d_v"),
          .key_dim = integer("key_dim"),
          .value_dim = integer("value_dim"),
          .bias = reader.boolean(prefix + "bias"),
          .output_projection = reader.boolean(prefix + "output_projection"),
          .rotary = read_rotary(reader, prefix),
          .type = kTypeValues[reader.choice(prefix + "type", kTypes)]};
}

std::optional<Rotary> read_rotary(const MetadataReader& reader, const std::string& prefix) {
  if (!reader.has(prefix + "rotary")) return std::nullopt;
  const int pairing = reader.choice(prefix + "rotary", kPairings);
  if (pairing == 2) return std::nullopt;
  return Rotary{.pairing = static_cast<Rotary::Pairing>(pairing),
                .base = reader.number(prefix + "rotary_base"),
                .dim = reader.integer(prefix + "rotary_dim")};
}

}  // namespace attend
