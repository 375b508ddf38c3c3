#include "attention_flags.h"

#include "frame/flags.h"
#include "frame/usage_error.h"
#include "tensors.h"

#include <attend/option_list.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

namespace attend::cli {
namespace {

// A number that the type of its tensor has no place for would become an infinity, and weights NaN.
void check_finite(const std::string& flag, double number, DType type) {
  if (type == DType::f64 || std::isfinite(static_cast<float>(number))) return;
  char digits[32];
  std::snprintf(digits, sizeof digits, "%.9g", number);
  throw UsageError(flag + ": " + digits +
                   " is too large for f32, whose numbers lie between -3.4e38 and 3.4e38; with "
                   "--type f64 there are larger ones");
}

}  // namespace

void add_attention_flags(const Flags& all, AttentionFlags& attention) {
  using Form = AttentionFlags::Source::Form;
  AttentionOptions& o = attention.options;
  Flags flags = all.group(kAttentionGroup);
  const auto tensor = [&](const char* name, const char* option, Form form, const char* text) {
    AttentionFlags::Source& source = attention.tensors[option];
    source.form = form;
    if (form == Form::file) flags.add_file(name, source.text, text);
    else add_list(flags, name, source.text, form == Form::numbers, text);
  };
  flags.add_switch("--causal", o.causal, "Query i sees keys up to i + offset only");
  flags.add_whole("--window-left", o.window.left, {}, "Keys before the query that are visible");
  flags.add_whole("--window-right", o.window.right, {}, "Keys after the query that are visible");
  tensor(
      "--query-offset", "query_offset", Form::whole_numbers,
      "Position of the first query, one number or one for each sequence; not given: the last query "
      "meets the last key");
  flags.add_whole("--key-offset", o.key_offset, {.least = std::numeric_limits<std::int64_t>::min()},
                  "Position of the first key, where k and v are a part of the keys");
  flags.add_real("--scale", o.scale, {}, "Factor of the scores; 1 / sqrt(d_k) if not given");
  flags.add_real("--softcap", o.softcap, {.least = 0},
                 "Scores s become softcap * tanh(s / softcap)");
  flags.add_switch("--bias-before-softcap", o.bias_before_softcap,
                   "Bias and ALiBi are added before the softcap");
  tensor("--mask", "mask", Form::file,
         "0 = hidden; [batch, heads, queries, keys], any of them may be 1");
  tensor("--bias", "bias", Form::file, "Added to the scores; shape as the mask's");
  tensor("--alibi", "alibi", Form::numbers, "ALiBi slopes [heads]");
  tensor("--sinks", "sinks", Form::numbers,
         "Attention sinks [heads]: a score more in each sum, without a value");
  tensor("--blocks", "blocks", Form::file,
         "Block mask [batch, heads, query blocks, key blocks], 0 = hidden");
  flags.add_whole("--blocks-query-size", o.blocks.query_size, {.least = 1}, "Queries of a block");
  flags.add_whole("--blocks-key-size", o.blocks.key_size, {.least = 1}, "Keys of a block");
  tensor("--key-lengths", "key_lengths", Form::whole_numbers,
         "Keys of each sequence; later ones are hidden");
  tensor("--cu-seqlens-q", "cu_seqlens_q", Form::whole_numbers,
         "Packed (varlen) sequences: where each begins, and the end");
  tensor("--cu-seqlens-k", "cu_seqlens_k", Form::whole_numbers,
         "The same of the keys, if they differ");
  // No flags: max_q and max_k, which are found on the CPU, and scales, which come with what made k.
  tensor("--block-table", "block_table", Form::file,
         "Paged keys and values: the pages of each sequence; --k and --v are the pages");
  flags.add_real("--dropout", o.dropout.p, {0, 1},
                 "Share of the weights that is dropped, drawn by --seed");
  flags.add_whole("--dropout-offset", attention.dropout_offset, {0, 0xffffffff},
                  "Number of this call among those of a seed");
  flags
      .add_text("--dropout-origin", attention.dropout_origin,
                "b,h,i,j,heads of the larger problem that this is a part of")
      .check([](const std::string& word) {
        const auto numbers = whole_numbers_in(word);
        const bool right = numbers && numbers->size() == 5 &&
                           *std::min_element(numbers->begin(), numbers->end()) >= 0;
        return right ? "" : "'" + word + "' is not five whole numbers of at least 0: b,h,i,j,heads";
      })
      .value("N,N,N,N,N");
}

DType statistics_type(DType type) { return type == DType::f64 ? DType::f64 : DType::f32; }

LoadedOptions load_options(const AttentionFlags& flags, DType type, bool convert,
                           std::uint64_t seed) {
  using Form = AttentionFlags::Source::Form;
  LoadedOptions loaded{.options = flags.options};
  AttentionOptions& o = loaded.options;
  const auto keep = [&](Tensor tensor) -> ConstTensorView {
    loaded.tensors.push_back(std::move(tensor));
    return loaded.tensors.back();
  };
  // Numbers are those of a call of `type`.
  const auto numbers_of = [&](const std::string& option, const std::string& source) {
    std::string flag = "--" + option;
    std::replace(flag.begin(), flag.end(), '_', '-');
    if (const auto numbers = real_numbers_in(source))
      for (const double number : *numbers) check_finite(flag, number, statistics_type(type));
    Tensor tensor = load_list(source, statistics_type(type));
    return keep(convert ? converted(std::move(tensor), statistics_type(type)) : std::move(tensor));
  };
  const auto given = [&](const std::string& option) {
    if (!flags.gives(option)) return ConstTensorView();
    const auto& [form, source] = flags.tensors.at(option);
    if (form == Form::numbers) return numbers_of(option, source);
    return keep(form == Form::file ? load_tensor(source) : load_list(source));
  };

  for_each_option(o, [&]<class Member>(const Option& option, Member& member) {
    if constexpr (std::is_same_v<Member, TensorOrView>) member = given(option.name);
    if constexpr (std::is_same_v<Member, Blocks>) member.visible = given(option.name);
  });
  if (o.bias && convert && o.bias.dtype() != DType::f32)
    o.bias = keep(converted(Tensor::copy_of(o.bias), type));
  if (const ConstTensorView offset = given("query_offset")) {
    // One number stands for all sequences; a file is one for each.
    const std::string& source = flags.tensors.at("query_offset").text;
    const bool one = offset.count() == 1 && !source.ends_with(".npy") &&
                     source.find(".safetensors") == std::string::npos;
    if (one) o.query_offset = offset.at<std::int64_t>({0});
    else o.query_offset = offset;
  }
  o.dropout.seed = seed;
  o.dropout.offset = static_cast<std::uint32_t>(flags.dropout_offset);
  if (!flags.dropout_origin.empty()) {
    const std::vector<std::int64_t> at = whole_numbers_in(flags.dropout_origin).value();
    o.dropout.origin = {at[0], at[1], at[2], at[3], at[4]};
  }
  return loaded;
}

}  // namespace attend::cli
