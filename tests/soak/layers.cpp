#include "layers.h"

#include "judged.h"
#include "support/dice.h"
#include "support/property_compare.h"

#include <attend/block.h>

#include <cmath>
#include <functional>

namespace attend::test {
namespace {

// Queries, a memory, and which rows of it nobody sees.
struct Cross {
  Tensor x, memory, dy, mask, key_lengths;
  AttentionOptions options;
  std::vector<std::pair<std::int64_t, std::int64_t>> hidden, visible;  // (batch, row)
};

Cross draw_cross(Dice& dice, DType type, std::int64_t width, std::int64_t memory_width) {
  const std::int64_t batch = dice.between(1, 3), queries = dice.between(1, 20),
                     keys = dice.between(2, 40);
  Cross c;
  const auto seed = [&] { return static_cast<std::uint64_t>(dice.between(1, 1 << 20)); };
  c.x = gaussian({batch, queries, width}, type, seed());
  c.memory = gaussian({batch, keys, memory_width}, type, seed());
  c.dy = gaussian({batch, queries, width}, type, seed());
  std::vector<std::int64_t> lengths(static_cast<std::size_t>(batch), keys);
  const bool by_length = dice.chance(0.5);
  if (by_length)
    for (std::int64_t& length : lengths) length = dice.between(0, keys);
  if (by_length) c.options.key_lengths = c.key_lengths = integers_of(lengths);
  c.mask = Tensor({batch, 1, 1, keys}, DType::boolean);
  for (std::int64_t b = 0; b < batch; ++b)
    for (std::int64_t j = 0; j < keys; ++j) {
      const bool seen = !dice.chance(0.3);
      c.mask.at<bool>({b, 0, 0, j}) = seen;
      const bool visible = (by_length || seen) && j < lengths[static_cast<std::size_t>(b)];
      (visible ? c.visible : c.hidden).emplace_back(b, j);
    }
  if (!by_length) c.options.mask = c.mask;
  if (dice.chance(0.3)) c.options.softcap = 5;
  if (dice.chance(0.3)) c.options.dropout = {.p = 0.25, .seed = 3};
  return c;
}

// y, and every gradient.
using Train = std::function<WrittenList(const Cross&, Context&)>;

WrittenList train_attention(const MultiHeadAttention& layer, const Cross& c, Context& context) {
  const auto [y, saved] = layer.forward_train(c.x, c.memory, c.memory, c.options, context);
  MultiHeadAttention::Gradients g = layer.backward(c.dy, saved, context);
  WrittenList list;
  list.push_back({"y", y});
  list.push_back({"dquery", std::move(g.dquery)});
  list.push_back({"dkey", std::move(g.dkey)});
  list.push_back({"dvalue", std::move(g.dvalue)});
  for (NamedTensor& parameter : g.parameters) list.push_back(std::move(parameter));
  return list;
}

WrittenList train_block(const AttentionBlock& block, const Cross& c, Context& context) {
  const auto [y, saved] = block.forward_train(c.x, c.memory, {}, c.options, context);
  AttentionBlock::Gradients g = block.backward(c.dy, saved, context);
  WrittenList list;
  list.push_back({"y", y});
  list.push_back({"dx", std::move(g.dx)});
  list.push_back({"dmemory", std::move(g.dmemory)});
  for (NamedTensor& parameter : g.parameters) list.push_back(std::move(parameter));
  return list;
}

std::string judge(Dice& dice, const Cross& clean, const Train& train, const std::string& name) {
  const WrittenList expected = train(clean, context_of(1));
  const bool hidden = !clean.hidden.empty() && (clean.visible.empty() || dice.chance(0.6));
  const auto& rows = hidden ? clean.hidden : clean.visible;
  if (rows.empty()) return "";
  const auto [b, j] =
      rows[static_cast<std::size_t>(dice.between(0, static_cast<std::int64_t>(rows.size()) - 1))];
  Cross planted = clean;
  planted.options.mask = clean.options.mask ? ConstTensorView(planted.mask) : ConstTensorView();
  if (clean.options.key_lengths) planted.options.key_lengths = planted.key_lengths;
  const double value = dice.one_of<double>({NAN, NAN, INFINITY});
  set_value(planted.memory, {b, j, dice.between(0, clean.memory.size(2) - 1)}, value);
  const WrittenList found = train(planted, context_of(1)),
                    with_threads = train(planted, context_of(3));
  const std::string by = std::string(hidden ? "hidden " : "visible ") + text_of(value) +
                         " in the memory of " + name + ": ";
  if (const std::string wrong = difference_of(found, with_threads); !wrong.empty())
    return by + "3 threads: " + wrong;
  if (hidden) {
    const std::string wrong = difference_of(expected, found);
    return wrong.empty() ? "" : by + "row " + std::to_string(j) + ": " + wrong;
  }
  // Visible: the rows of its batch element are NaN (an infinity may be a score of -inf, which
  // weighs nothing), those of the others stay.
  const std::vector<double> y = widen(found.front().tensor), was = widen(expected.front().tensor);
  const auto of_batch = y.size() / static_cast<std::size_t>(clean.x.size(0));
  for (std::size_t n = 0; n < y.size(); ++n) {
    const bool reached = n / of_batch == static_cast<std::size_t>(b);
    if (reached ? std::isnan(value) && std::isfinite(y[n]) && clean.options.dropout.p == 0
                : y[n] != was[n])
      return by + "y [" + std::to_string(n) + "] is " + text_of(y[n]) + ", was " + text_of(was[n]);
  }
  return "";
}

}  // namespace

std::vector<std::string> judge_layers(const SweepCase& c, Tally& tally) {
  Dice dice(c.variant, 183);
  const DType type = c.problem.type;
  const std::int64_t heads = dice.between(1, 4), width = heads * dice.between(1, 6);
  const std::int64_t memory_width = dice.chance(0.5) ? width : dice.between(1, 20);
  const MultiHeadAttentionOptions options{
      .model_dim = width, .heads = heads, .key_dim = memory_width, .type = type, .seed = c.variant};
  const Cross cross = draw_cross(dice, type, width, memory_width);
  tally.ran("MultiHeadAttention");
  const MultiHeadAttention layer(options);
  const auto attention = [&](const Cross& with, Context& context) {
    return train_attention(layer, with, context);
  };
  std::vector<std::string> all;
  if (std::string wrong = judge(dice, cross, attention, "MultiHeadAttention"); !wrong.empty())
    all.push_back(wrong);
  AttentionBlockOptions of_block{.attention = options,
                                 .cross = true,
                                 .memory_dim = memory_width,
                                 .hidden_dim = dice.between(0, 9)};
  of_block.attention.key_dim = 0;
  of_block.placement = dice.one_of({NormPlacement::post, NormPlacement::pre, NormPlacement::none});
  tally.ran("AttentionBlock");
  const AttentionBlock block(of_block);
  const auto of_all = [&](const Cross& with, Context& context) {
    return train_block(block, with, context);
  };
  if (std::string wrong = judge(dice, cross, of_all, "AttentionBlock"); !wrong.empty())
    all.push_back(wrong);
  return all;
}

}  // namespace attend::test
