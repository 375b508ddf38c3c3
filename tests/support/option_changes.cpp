#include "option_changes.h"

namespace attend::test {
namespace {

const Tensor& zeros(const Shape& shape, DType type = DType::f32) {
  static std::vector<std::unique_ptr<const Tensor>> all;  // the options hold views only
  all.push_back(std::make_unique<const Tensor>(shape, type));
  return *all.back();
}

}  // namespace

AttentionOptions start_options() {
  AttentionOptions options{.bias = zeros({1, 1, 3, 5}),
                           .blocks = {zeros({1, 1, 2, 2}, DType::u8), 2, 3},
                           .dropout = {.p = 0.5, .seed = 1, .offset = 2}};
  // A new option has no name here, and this line does not compile: add its changes below.
  [[maybe_unused]] const auto& [scale, softcap, bias_before_softcap, causal, window, query_offset,
                                key_offset, mask, bias, alibi, sinks, blocks, key_lengths,
                                cu_seqlens_q, cu_seqlens_k, block_table, dropout] = options;
  return options;
}

std::vector<OptionChange> option_changes() {
  using Options = AttentionOptions;
  return {
      {"scale", [](Options& o) { o.scale = 0.3; }},
      {"softcap", [](Options& o) { o.softcap = 0.3; }},
      {"bias_before_softcap", [](Options& o) { o.bias_before_softcap = true; }},
      {"causal", [](Options& o) { o.causal = true; }},
      {"window.left", [](Options& o) { o.window.left = 2; }},
      {"window.right", [](Options& o) { o.window.right = 2; }},
      {"query_offset", [](Options& o) { o.query_offset = 0; }},
      {"query_offset of each", [](Options& o) { o.query_offset = zeros({2}, DType::i64); }},
      {"key_offset", [](Options& o) { o.key_offset = 0; }},
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
      {"alibi", [](Options& o) { o.alibi = zeros({4}); }},
      {"sinks", [](Options& o) { o.sinks = zeros({4}); }},
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

std::vector<OptionChange> value_changes() {
  using Options = AttentionOptions;
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
