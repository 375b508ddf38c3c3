// Keyword arguments that become AttentionOptions: one name after the other, with the mistakes that
// users of other libraries make explained.
#include "options.h"

#include "fields.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>

namespace attend::python {
namespace {

// What a keyword means in the libraries that have it, and how it is said here.
struct Foreign {
  std::string_view name, advice;
};
constexpr Foreign kForeign[] = {
    {"attn_mask",
     "here it is mask=, where True (or 1) means that the key takes part, as in PyTorch's "
     "scaled_dot_product_attention; nn.MultiheadAttention means the opposite, so its mask is "
     "mask=~attn_mask. Numbers that are added to the scores are bias="},
    {"key_padding_mask",
     "here it is mask=, where True (or 1) means that the key takes part; "
     "nn.MultiheadAttention means the opposite: mask=~key_padding_mask[:, None, None, :], or "
     "key_lengths= if the padding is at the end"},
    {"is_causal",
     "here it is causal=; the last query meets the last key, where PyTorch's first query meets the "
     "first key (query_offset=0)"},
    {"dropout_p", "here it is dropout=(p, seed, offset)"},
    {"enable_gqa", "grouped heads need no switch here"},
    {"softmax_scale", "here it is scale="},
    {"window_size", "here it is window=(left, right)"},
    {"alibi_slopes", "here it is alibi="},
};

constexpr std::string_view kNames[] = {"scale",       "softcap",      "bias_before_softcap",
                                       "causal",      "window",       "query_offset",
                                       "key_offset",  "mask",         "bias",
                                       "alibi",       "sinks",        "blocks",
                                       "key_lengths", "cu_seqlens_q", "cu_seqlens_k",
                                       "block_table", "dropout"};

bool is_option(std::string_view name) {
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

// A number, also one of NumPy's; arrays have __index__ too, but are looked at as arrays.
bool is_whole_number(nb::handle value) {
  return PyIndex_Check(value.ptr()) && !nb::hasattr(value, "__dlpack__");
}

[[noreturn]] void refuse_name(const std::string& where, std::string_view name) {
  std::string message = where + "() got an unexpected keyword argument '" + std::string(name) + "'";
  for (const Foreign& foreign : kForeign) {
    if (foreign.name == name) raise_type_error(message + ": " + std::string(foreign.advice));
  }
  message += "; the options are ";
  for (const std::string_view option : kNames) {
    message += (option == kNames[0] ? "" : ", ") + std::string(option);
  }
  raise_type_error(message);
}

}  // namespace

Options::Options(const nb::kwargs& keywords, const char* where) : where_(where) {
  arrays_.reserve(keywords.size());
  for (const auto [name, value] : keywords) take(name, value);
}

Options::Options(nb::handle dict_or_none, const char* where, const char* name) : where_(where) {
  if (dict_or_none.is_none()) return;
  if (!nb::isinstance<nb::dict>(dict_or_none)) {
    raise_type_error(std::string(where) + ": " + name + " takes a dict of options, found " +
                     name_of_type(dict_or_none));
  }
  // A copy: reading an array may run Python, which may change the dict.
  const auto entries = nb::steal<nb::dict>(PyDict_Copy(dict_or_none.ptr()));
  for (const auto [key, value] : entries) take(key, value);
}

void Options::take(nb::handle key, nb::handle value) {
  const char* given = nullptr;
  if (!nb::try_cast(key, given) || !given) {
    raise_type_error(std::string(where_) + ": the names of options are str, found " +
                     name_of_type(key));
  }
  const std::string_view name = given;
  const auto real = [&] { return number<double>(value, where_, name, "a number"); };
  const auto yes_or_no = [&] { return number<bool>(value, where_, name, "True or False"); };
  constexpr auto floating = Kind::floating, whole = Kind::whole;

  if (name == "softcap") options_.softcap = real();
  else if (name == "bias_before_softcap") options_.bias_before_softcap = yes_or_no();
  else if (name == "causal") options_.causal = yes_or_no();
  else if (name == "attn_mask" || name == "key_padding_mask") refuse_name(where_, name);
  else if (value.is_none() && is_option(name)) return;  // not given
  else if (name == "scale") options_.scale = real();
  else if (name == "window") options_.window = window(value);
  else if (name == "query_offset" && is_whole_number(value))
    options_.query_offset = number<std::int64_t>(value, where_, name, "a whole number");
  else if (name == "query_offset" && (PyFloat_Check(value.ptr()) || nb::isinstance<nb::str>(value)))
    raise_type_error(std::string(where_) +
                     ": query_offset takes a whole number, or an array of one for each sequence, "
                     "found " +
                     name_of_type(value));
  else if (name == "query_offset") options_.query_offset = array(value, "query_offset", whole);
  else if (name == "key_offset")
    options_.key_offset = number<std::int64_t>(value, where_, name, "a whole number");
  else if (name == "mask") options_.mask = array(value, "mask", Kind::mask);
  else if (name == "bias") options_.bias = array(value, "bias", floating);
  else if (name == "alibi") options_.alibi = array(value, "alibi", floating);
  else if (name == "sinks") options_.sinks = array(value, "sinks", floating);
  else if (name == "blocks") options_.blocks = blocks(value);
  else if (name == "key_lengths") options_.key_lengths = array(value, "key_lengths", whole);
  else if (name == "cu_seqlens_q") options_.cu_seqlens_q = array(value, "cu_seqlens_q", whole);
  else if (name == "cu_seqlens_k") options_.cu_seqlens_k = array(value, "cu_seqlens_k", whole);
  else if (name == "block_table") options_.block_table = array(value, "block_table", whole);
  else if (name == "dropout") options_.dropout = dropout(value);
  else refuse_name(where_, name);
}

ConstTensorView Options::array(nb::handle value, const char* name, Kind kind) {
  arrays_.push_back(read(value, {where_, name, kind}));
  return arrays_.back().view;
}

Window Options::window(nb::handle value) {
  const auto sides = fields<2>(value, where_, "window", {"left", "right"});
  Window result;
  const auto side = [&](const nb::object& given, std::int64_t& to) {
    if (!given || given.is_none()) return;
    to = number<std::int64_t>(given, where_, "window", "whole numbers or None (no limit)");
    if (to < 0)
      throw InvalidArgument(std::string(where_) + ": window holds " + std::to_string(to) +
                            "; its numbers are at least 0, or None: no limit");
  };
  side(sides[0], result.left);
  side(sides[1], result.right);
  return result;
}

Blocks Options::blocks(nb::handle value) {
  const auto parts = fields<3>(value, where_, "blocks", {"visible", "query_size", "key_size"});
  for (const nb::object& part : parts) {
    if (!part)
      raise_type_error(std::string(where_) + ": blocks takes (visible, query_size, key_size)");
  }
  return {array(parts[0], "blocks.visible", Kind::mask),
          number<std::int64_t>(parts[1], where_, "blocks.query_size", "a whole number"),
          number<std::int64_t>(parts[2], where_, "blocks.key_size", "a whole number")};
}

Dropout Options::dropout(nb::handle value) {
  const auto parts = fields<4>(value, where_, "dropout", {"p", "seed", "offset", "origin"});
  Dropout result;
  if (parts[0]) result.p = number<double>(parts[0], where_, "dropout.p", "a number");
  if (parts[1])
    result.seed = number<std::uint64_t>(parts[1], where_, "dropout.seed", "a 64-bit number");
  if (parts[2])
    result.offset = number<std::uint32_t>(parts[2], where_, "dropout.offset", "a 32-bit number");
  if (!parts[3] || parts[3].is_none()) return result;
  const auto origin = fields<5>(parts[3], where_, "dropout.origin", {"b", "h", "i", "j", "heads"});
  std::int64_t* const to[] = {&result.origin.b, &result.origin.h, &result.origin.i,
                              &result.origin.j, &result.origin.heads};
  for (std::size_t field = 0; field < origin.size(); ++field) {
    if (origin[field])
      *to[field] = number<std::int64_t>(origin[field], where_, "dropout.origin", "whole numbers");
  }
  return result;
}

ScoreStage to_stage(nb::handle name, const char* where) {
  std::string_view stage;
  if (nb::isinstance<nb::str>(name)) stage = nb::cast<const char*>(name);
  if (stage == "raw") return ScoreStage::raw;
  if (stage == "softcapped") return ScoreStage::softcapped;
  if (stage == "masked") return ScoreStage::masked;
  raise_type_error(std::string(where) + ": return_scores is 'raw', 'softcapped', 'masked' or None");
}

}  // namespace attend::python
