#include "option_changes.h"

#include <attend/option_list.h>

#include <algorithm>
#include <stdexcept>
#include <string_view>

namespace attend::test {
namespace {

const Tensor& zeros(const Shape& shape, DType type = DType::f32) {
  static std::vector<std::unique_ptr<const Tensor>> all;  // the options hold views only
  all.push_back(std::make_unique<const Tensor>(shape, type));
  return *all.back();
}

}  // namespace

AttentionOptions start_options() {
  return {.bias = zeros({1, 1, 3, 5}),
          .blocks = {zeros({1, 1, 2, 2}, DType::u8), 2, 3},
          .dropout = {.p = 0.5, .seed = 1, .offset = 2}};
}

namespace {

using Options = AttentionOptions;

// Another number, flag or number of each head or key; false: a change of another kind is written
// below.
bool change(const Option& option, auto& member) {
  using Member = std::remove_reference_t<decltype(member)>;
  const bool of_heads = option.kind == OptionKind::head_tensor,
             of_keys = option.kind == OptionKind::key_tensor;
  if constexpr (std::is_same_v<Member, double> || std::is_same_v<Member, std::optional<double>>)
    member = 0.3;
  else if constexpr (std::is_same_v<Member, bool>) member = true;
  else if constexpr (std::is_same_v<Member, std::optional<std::int64_t>>) member = 0;
  else if constexpr (!std::is_same_v<Member, TensorOrView>) return false;
  else if (!of_heads && !of_keys) return false;
  else member = zeros(of_heads ? Shape{4} : Shape{2, 2, 5});
  return true;
}

// Of these q and k have another form.
constexpr std::string_view kOtherInputs[] = {"cu_seqlens_q", "cu_seqlens_k", "max_q", "max_k",
                                             "block_table"};

bool is_of_other_inputs(std::string_view name) {
  return std::find(std::begin(kOtherInputs), std::end(kOtherInputs), name) !=
         std::end(kOtherInputs);
}

std::vector<OptionChange> changes_by_kind() {
  std::vector<OptionChange> changes;
  Options unused;
  for_each_option(unused, [&](const Option& option, auto& member) {
    if (is_of_other_inputs(option.name) || !change(option, member)) return;
    changes.push_back({option.name, [name = std::string(option.name)](Options& o) {
                         for_each_option(o, [&](const Option& other, auto& to) {
                           if (other.name == name) change(other, to);
                         });
                       }});
  });
  return changes;
}

std::vector<OptionChange> other_changes() {
  return {
      {"window.left", [](Options& o) { o.window.left = 2; }},
      {"window.right", [](Options& o) { o.window.right = 2; }},
      {"query_offset", [](Options& o) { o.query_offset = 0; }},
      {"query_offset of each", [](Options& o) { o.query_offset = zeros({2}, DType::i64); }},
      {"mask", [](Options& o) { o.mask = zeros({5}, DType::u8); }},
      {"mask of another type", [](Options& o) { o.mask = zeros({5}, DType::i64); }},
      {"short mask", [](Options& o) { o.mask = zeros({4}, DType::u8); }},
      {"no bias", [](Options& o) { o.bias = {}; }},
      {"short bias",
       [](Options& o) {
         o.bias = zeros({1, 1, 3, 4});
       }},
      {"bias of each batch element",
       [](Options& o) {
         o.bias = zeros({2, 1, 3, 5});
       }},
      {"bias of each head",
       [](Options& o) {
         o.bias = zeros({1, 4, 3, 5});
       }},
      {"bias of all queries",
       [](Options& o) {
         o.bias = zeros({1, 1, 1, 5});
       }},
      {"bias of all keys",
       [](Options& o) {
         o.bias = zeros({1, 1, 3, 1});
       }},
      {"no blocks", [](Options& o) { o.blocks = {}; }},
      {"blocks.query_size",
       [](Options& o) {
         o.blocks = {zeros({1, 1, 1, 2}, DType::u8), 3, 3};
       }},
      {"blocks.key_size",
       [](Options& o) {
         o.blocks = {zeros({1, 1, 2, 2}, DType::u8), 2, 4};
       }},
      {"blocks of another type",
       [](Options& o) {
         o.blocks = {zeros({1, 1, 2, 2}, DType::boolean), 2, 3};
       }},
      {"key_lengths", [](Options& o) { o.key_lengths = zeros({2}, DType::i32); }},
      {"no dropout", [](Options& o) { o.dropout.p = 0; }},
      {"dropout.p", [](Options& o) { o.dropout.p += 1.0 / 65536; }},
  };
}

}  // namespace

std::vector<OptionChange> option_changes() {
  std::vector<OptionChange> changes = changes_by_kind();
  for (OptionChange& other : other_changes()) changes.push_back(std::move(other));
  const Options all;
  for_each_option(all, [&](const Option& option, const auto&) {
    const std::string_view name = option.name;
    const auto is_of_it = [&](const OptionChange& c) { return c.name.starts_with(name); };
    if (std::none_of(changes.begin(), changes.end(), is_of_it) && !is_of_other_inputs(name))
      throw std::logic_error("option_changes: write one of " + std::string(name));
  });
  return changes;
}

std::vector<OptionChange> value_changes() {
  return {
      {"dropout.seed", [](Options& o) { o.dropout.seed = std::uint64_t{1} << 40; }},
      {"dropout.offset", [](Options& o) { o.dropout.offset = 3; }},
      {"dropout.origin.b", [](Options& o) { o.dropout.origin.b = 1; }},
      {"dropout.origin.h", [](Options& o) { o.dropout.origin = {.h = 1, .heads = 5}; }},
      {"dropout.origin.i", [](Options& o) { o.dropout.origin.i = 1; }},
      {"dropout.origin.j", [](Options& o) { o.dropout.origin.j = 1; }},
      {"dropout.origin.heads", [](Options& o) { o.dropout.origin.heads = 5; }},
  };
}

}  // namespace attend::test
