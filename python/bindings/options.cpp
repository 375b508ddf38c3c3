// Keyword arguments that become AttentionOptions: one name after the other, with the mistakes that
// users of other libraries make explained.
#include "options.h"

#include "fields.h"

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
    {"max_seqlen_q", "here it is max_q="},
    {"max_seqlen_k", "here it is max_k="},
    {"tiles", "inspect() takes tile_rows= and tile_columns="},
};

// A number, also one of NumPy's; arrays have __index__ too, but are looked at as arrays.
bool is_whole_number(nb::handle value) {
  return PyIndex_Check(value.ptr()) && !nb::hasattr(value, "__dlpack__");
}

[[noreturn]] void refuse_name(const std::string& where, std::string_view name) {
  std::string message = where + "() got an unexpected keyword argument '" + std::string(name) + "'";
  for (const Foreign& foreign : kForeign) {
    if (foreign.name == name) raise_type_error(message + ": " + std::string(foreign.advice));
  }
  std::string names;
  const AttentionOptions all;
  for_each_option(all, [&](const Option& option, const auto&) {
    names += (names.empty() ? "" : ", ") + std::string(option.name);
  });
  raise_type_error(message + "; the options are " + names);
}

}  // namespace

Options::Options(const nb::kwargs& keywords, const char* where, Devices devices)
    : where_(where), devices_(devices) {
  arrays_.reserve(keywords.size());
  for (const auto [name, value] : keywords) take(name, value);
}

Options::Options(nb::handle dict_or_none, const char* where, const char* name, Devices devices)
    : where_(where), devices_(devices) {
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
  bool known = false;
  for_each_option(options_, [&]<class Member>(const Option& option, Member& member) {
    if (option.name != std::string_view(given)) return;
    known = true;
    constexpr bool has_default = std::is_same_v<Member, double> || std::is_same_v<Member, bool>;
    if (has_default || !value.is_none()) set(member, option, value);  // None: not given
  });
  if (!known) refuse_name(where_, given);
}

void Options::set(double& to, const Option& option, nb::handle value) {
  to = number<double>(value, where_, option.name, "a number");
}

void Options::set(bool& to, const Option& option, nb::handle value) {
  to = number<bool>(value, where_, option.name, "True or False");
}

void Options::set(std::optional<double>& to, const Option& option, nb::handle value) {
  to = number<double>(value, where_, option.name, "a number");
}

void Options::set(std::optional<std::int64_t>& to, const Option& option, nb::handle value) {
  to = number<std::int64_t>(value, where_, option.name, "a whole number");
}

void Options::set(TensorOrView& to, const Option& option, nb::handle value) {
  Kind kind = Kind::floating;
  if (option.kind == OptionKind::mask_tensor) kind = Kind::mask;
  if (option.kind == OptionKind::integer_tensor) kind = Kind::whole;
  to = array(value, option.name, kind);
}

void Options::set(QueryOffset& to, const Option& option, nb::handle value) {
  if (is_whole_number(value)) {
    to = number<std::int64_t>(value, where_, option.name, "a whole number");
    return;
  }
  if (PyFloat_Check(value.ptr()) || nb::isinstance<nb::str>(value))
    raise_type_error(std::string(where_) +
                     ": query_offset takes a whole number, or an array of one for each sequence, "
                     "found " +
                     name_of_type(value));
  to = array(value, option.name, Kind::whole);
}

ConstTensorView Options::array(nb::handle value, const char* name, Kind kind) {
  arrays_.push_back(read(value, {where_, name, kind, false, devices_}));
  return arrays_.back().view;
}

void Options::set(Window& to, const Option&, nb::handle value) {
  const auto sides = fields<2>(value, where_, "window", {"left", "right"});
  const auto side = [&](const nb::object& given, std::int64_t& limit) {
    if (!given || given.is_none()) return;
    limit = number<std::int64_t>(given, where_, "window", "whole numbers or None (no limit)");
    if (limit < 0)
      throw InvalidArgument(std::string(where_) + ": window holds " + std::to_string(limit) +
                            "; its numbers are at least 0, or None: no limit");
  };
  side(sides[0], to.left);
  side(sides[1], to.right);
}

void Options::set(Blocks& to, const Option&, nb::handle value) {
  const auto parts = fields<3>(value, where_, "blocks", {"visible", "query_size", "key_size"});
  for (const nb::object& part : parts) {
    if (!part)
      raise_type_error(std::string(where_) + ": blocks takes (visible, query_size, key_size)");
  }
  to = {array(parts[0], "blocks.visible", Kind::mask),
        number<std::int64_t>(parts[1], where_, "blocks.query_size", "a whole number"),
        number<std::int64_t>(parts[2], where_, "blocks.key_size", "a whole number")};
}

void Options::set(Dropout& to, const Option&, nb::handle value) {
  const auto parts = fields<4>(value, where_, "dropout", {"p", "seed", "offset", "origin"});
  if (parts[0]) to.p = number<double>(parts[0], where_, "dropout.p", "a number");
  if (parts[1])
    to.seed = number<std::uint64_t>(parts[1], where_, "dropout.seed", "a 64-bit number");
  if (parts[2])
    to.offset = number<std::uint32_t>(parts[2], where_, "dropout.offset", "a 32-bit number");
  if (!parts[3] || parts[3].is_none()) return;
  const auto origin = fields<5>(parts[3], where_, "dropout.origin", {"b", "h", "i", "j", "heads"});
  std::int64_t* const places[] = {&to.origin.b, &to.origin.h, &to.origin.i, &to.origin.j,
                                  &to.origin.heads};
  for (std::size_t field = 0; field < origin.size(); ++field) {
    if (origin[field])
      *places[field] =
          number<std::int64_t>(origin[field], where_, "dropout.origin", "whole numbers");
  }
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
