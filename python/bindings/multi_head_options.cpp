// Options of MultiHeadAttention from keywords and back.
#include "multi_head.h"

#include "fields.h"

namespace attend::python {
namespace {

using Options_ = MultiHeadAttentionOptions;

struct Size {
  std::string_view name;
  std::int64_t Options_::*member;
};
constexpr Size kSizes[] = {
    {"model_dim", &Options_::model_dim},
    {"heads", &Options_::heads},
    {"key_heads", &Options_::key_heads},
    {"d_k", &Options_::d_k},
    {"d_v", &Options_::d_v},
    {"key_dim", &Options_::key_dim},
    {"value_dim", &Options_::value_dim},
};

// What other libraries call an option, and how it is said here.
struct Foreign {
  std::string_view name, advice;
};
constexpr Foreign kForeign[] = {
    {"embed_dim", "here it is model_dim="},
    {"d_model", "here it is model_dim="},
    {"hidden_size", "here it is model_dim="},
    {"num_heads", "here it is heads="},
    {"nhead", "here it is heads="},
    {"num_attention_heads", "here it is heads="},
    {"num_kv_heads", "here it is key_heads="},
    {"num_key_value_heads", "here it is key_heads="},
    {"head_dim", "here it is d_k=, and d_v= if the values' differs"},
    {"kdim", "here it is key_dim="},
    {"vdim", "here it is value_dim="},
    {"dtype", "here it is type="},
    {"dropout", "here it is an option of each call: forward(x, dropout=(p, seed, offset))"},
    {"batch_first", "here the batch always comes first: [batch, length, model_dim]"},
};

[[noreturn]] void refuse_name(const std::string& where, const std::string& name) {
  const std::string message = where + "() got an unexpected keyword argument '" + name + "'";
  for (const Foreign& foreign : kForeign)
    if (foreign.name == name) raise_type_error(message + ": " + std::string(foreign.advice));
  raise_type_error(message +
                   "; the options are model_dim, heads, key_heads, d_k, d_v, key_dim, value_dim, "
                   "bias, output_projection, rotary, type, seed");
}

bool take_size(Options_& options, std::string_view name, nb::handle value, const char* where) {
  for (const Size& size : kSizes) {
    if (size.name != name) continue;
    options.*size.member = number<std::int64_t>(value, where, name, "a whole number");
    return true;
  }
  return false;
}

}  // namespace

std::optional<Rotary> to_rotary(nb::handle value, const char* where) {
  if (value.is_none()) return {};
  const auto parts = fields<3>(value, where, "rotary", {"pairing", "base", "dim"});
  Rotary result;
  if (parts[0].is_valid()) {
    result.pairing = choose<Rotary::Pairing>(parts[0], kPairings, "rotary: pairing");
  }
  if (parts[1].is_valid()) result.base = number<double>(parts[1], where, "rotary.base", "a number");
  if (parts[2].is_valid()) {
    result.dim = number<std::int64_t>(parts[2], where, "rotary.dim", "a whole number");
  }
  return result;
}

MultiHeadAttentionOptions to_multi_head_options(nb::handle dict, const char* where) {
  if (!nb::isinstance<nb::dict>(dict)) {
    raise_type_error(std::string(where) + ": attention takes a dict of options, found " +
                     name_of_type(dict));
  }
  MultiHeadAttentionOptions options;
  for (const auto [key, value] : nb::borrow<nb::dict>(dict)) {
    const std::string name = string_of(key);
    if (take_size(options, name, value, where)) continue;
    if (name == "bias") options.bias = number<bool>(value, where, name, "True or False");
    else if (name == "output_projection")
      options.output_projection = number<bool>(value, where, name, "True or False");
    else if (name == "rotary") options.rotary = to_rotary(value, where);
    else if (name == "type") options.type = to_dtype(value, where);
    else if (name == "seed")
      options.seed = number<std::uint64_t>(value, where, name, "a 64-bit number");
    else refuse_name(where, name);
  }
  return options;
}

nb::dict to_python(const MultiHeadAttentionOptions& options) {
  nb::dict dict;
  for (const Size& size : kSizes) dict[size.name.data()] = options.*size.member;
  dict["bias"] = options.bias;
  dict["output_projection"] = options.output_projection;
  dict["rotary"] = nb::none();
  if (const std::optional<Rotary>& rotary = options.rotary) {
    dict["rotary"] =
        nb::module_::import_("attend._types")
            .attr("Rotary")(chosen(rotary->pairing, kPairings), rotary->base, rotary->dim);
  }
  dict["type"] = chosen(options.type);
  dict["seed"] = options.seed;
  return dict;
}

}  // namespace attend::python
