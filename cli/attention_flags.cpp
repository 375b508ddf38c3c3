#include "attention_flags.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

namespace attend::cli {
namespace {

// A number that the type of its tensor has no place for would become an infinity, and weights NaN.
void check_finite(const char* flag, double number, DType type) {
  if (type == DType::f64 || std::isfinite(static_cast<float>(number))) return;
  char digits[32];
  std::snprintf(digits, sizeof digits, "%.9g", number);
  throw UsageError(std::string(flag) + ": " + digits +
                   " is too large for f32, whose numbers lie between -3.4e38 and 3.4e38; with "
                   "--type f64 there are larger ones");
}

}  // namespace

void add_attention_flags(CLI::App& app, AttentionFlags& flags) {
  const std::string group = kAttentionGroup;
  const auto whole = [&](const char* name, std::int64_t& value, Whole allowed, const char* text) {
    add_whole(app, name, value, allowed, text)->group(group);
  };
  const auto real = [&](const char* name, auto& value, Real allowed, const char* text) {
    app.add_option(name, value, text)
        ->transform(real_number(allowed))
        ->type_name("X")
        ->group(group);
  };
  const auto file = [&](const char* name, std::string& value, const char* text) {
    app.add_option(name, value, text)->type_name("FILE")->group(group);
  };
  const auto list = [&](const char* name, std::string& value, const char* text,
                        bool fractions = false) {
    add_list(app, name, value, fractions, text)->group(group);
  };
  app.add_flag("--causal", flags.causal, "Query i sees keys up to i + offset only")->group(group);
  whole("--window-left", flags.window_left, {}, "Keys before the query that are visible");
  whole("--window-right", flags.window_right, {}, "Keys after the query that are visible");
  list(
      "--query-offset", flags.query_offset,
      "Position of the first query, one number or one for each sequence; not given: the last query "
      "meets the last key");
  app.add_option("--key-offset", flags.key_offset,
                 "Position of the first key, where k and v are a part of the keys")
      ->transform(whole_number({.least = std::numeric_limits<std::int64_t>::min()}))
      ->type_name("N")
      ->group(group);
  real("--scale", flags.scale, {}, "Factor of the scores; 1 / sqrt(d_k) if not given");
  real("--softcap", flags.softcap, {.least = 0}, "Scores s become softcap * tanh(s / softcap)");
  app.add_flag("--bias-before-softcap", flags.bias_before_softcap,
               "Bias and ALiBi are added before the softcap")
      ->group(group);
  file("--mask", flags.mask, "0 = hidden; [batch, heads, queries, keys], any of them may be 1");
  file("--bias", flags.bias, "Added to the scores; shape as the mask's");
  list("--alibi", flags.alibi, "ALiBi slopes [heads]", true);
  list("--sinks", flags.sinks, "Attention sinks [heads]: a score more in each sum, without a value",
       true);
  file("--blocks", flags.blocks, "Block mask [batch, heads, query blocks, key blocks], 0 = hidden");
  whole("--block-query-size", flags.block_query_size, {.least = 1}, "Queries of a block");
  whole("--block-key-size", flags.block_key_size, {.least = 1}, "Keys of a block");
  list("--key-lengths", flags.key_lengths, "Keys of each sequence; later ones are hidden");
  list("--cu-seqlens-q", flags.cu_seqlens_q,
       "Packed (varlen) sequences: where each begins, and the end");
  list("--cu-seqlens-k", flags.cu_seqlens_k, "The same of the keys, if they differ");
  file("--block-table", flags.block_table,
       "Paged keys and values: the pages of each sequence; --k and --v are the pages");
  real("--dropout", flags.dropout, {0, 1}, "Share of the weights that is dropped, drawn by --seed");
  whole("--dropout-offset", flags.dropout_offset, {0, 0xffffffff},
        "Number of this call among those of a seed");
  app.add_option("--dropout-origin", flags.dropout_origin,
                 "b,h,i,j,heads of the larger problem that this is a part of")
      ->check([](const std::string& word) {
        const auto numbers = whole_numbers_in(word);
        const bool right = numbers && numbers->size() == 5 &&
                           *std::min_element(numbers->begin(), numbers->end()) >= 0;
        return right ? "" : "'" + word + "' is not five whole numbers of at least 0: b,h,i,j,heads";
      })
      ->type_name("N,N,N,N,N")
      ->group(group);
}

DType statistics_type(DType type) { return type == DType::f64 ? DType::f64 : DType::f32; }

LoadedOptions load_options(const AttentionFlags& flags, DType type, bool convert,
                           std::uint64_t seed) {
  LoadedOptions loaded;
  AttentionOptions& o = loaded.options;
  const auto keep = [&](Tensor tensor) -> ConstTensorView {
    loaded.tensors.push_back(std::move(tensor));
    return loaded.tensors.back();
  };
  const auto file = [&](const std::string& source) {
    return source.empty() ? ConstTensorView() : keep(load_tensor(source));
  };
  const auto list = [&](const std::string& source) {
    return source.empty() ? ConstTensorView() : keep(load_list(source));
  };
  const auto statistics = [&](const char* flag, const std::string& source) {
    if (source.empty()) return ConstTensorView();
    if (const auto numbers = real_numbers_in(source))
      for (const double number : *numbers) check_finite(flag, number, statistics_type(type));
    Tensor tensor = load_list(source, statistics_type(type));
    return keep(convert ? converted(std::move(tensor), statistics_type(type)) : std::move(tensor));
  };

  o.scale = flags.scale;
  o.softcap = flags.softcap;
  o.bias_before_softcap = flags.bias_before_softcap;
  o.causal = flags.causal;
  o.window = {flags.window_left, flags.window_right};
  o.mask = file(flags.mask);
  o.bias = file(flags.bias);
  if (o.bias && convert && o.bias.dtype() != DType::f32)
    o.bias = keep(converted(Tensor::copy_of(o.bias), type));
  o.alibi = statistics("--alibi", flags.alibi);
  o.sinks = statistics("--sinks", flags.sinks);
  o.blocks = {file(flags.blocks), flags.block_query_size, flags.block_key_size};
  o.key_lengths = list(flags.key_lengths);
  o.cu_seqlens_q = list(flags.cu_seqlens_q);
  o.cu_seqlens_k = list(flags.cu_seqlens_k);
  o.block_table = file(flags.block_table);
  const ConstTensorView offset = list(flags.query_offset);
  // One number stands for all sequences; a file is one for each.
  const bool one = offset && offset.count() == 1 && !flags.query_offset.ends_with(".npy") &&
                   flags.query_offset.find(".safetensors") == std::string::npos;
  if (one) o.query_offset = offset.at<std::int64_t>({0});
  else if (offset) o.query_offset = offset;
  o.key_offset = flags.key_offset;
  o.dropout = {
      .p = flags.dropout, .seed = seed, .offset = static_cast<std::uint32_t>(flags.dropout_offset)};
  if (!flags.dropout_origin.empty()) {
    const std::vector<std::int64_t> at = whole_numbers_in(flags.dropout_origin).value();
    o.dropout.origin = {at[0], at[1], at[2], at[3], at[4]};
  }
  return loaded;
}

}  // namespace attend::cli
