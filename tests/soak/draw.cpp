// Problems for the sweeps: those of the properties, with sizes, layouts and outputs drawn more
// widely.
#include "support/dice.h"
#include "support/property_trial.h"
#include "sweep.h"

namespace attend::test {
namespace {

using cases::Case;

// Multiply-adds of one pass that a case may take: a fraction of a second for all kernels, and for
// the truth, which of f64 is computed in 113 bits.
std::int64_t most_cost(const Case& c) { return c.type == DType::f64 ? 60'000 : 1'200'000; }

void draw_sizes(Dice& dice, Case& c) {
  if (dice.chance(0.5)) {
    c.q_length = dice.between(0, dice.chance(0.5) ? 300 : 70);
    c.k_length = dice.between(0, dice.chance(0.5) ? 300 : 70);
  }
  if (dice.chance(0.3)) {
    c.d = dice.between(1, dice.chance(0.1) ? 300 : 130);
    c.dv = dice.chance(0.5) ? c.d : dice.between(1, 130);
  }
  if (dice.chance(0.03)) c.d = 16 * dice.between(16, 80);  // more than one chain of sums
  if (dice.chance(0.06)) {                                 // decoding
    c.q_length = dice.between(1, 5);
    c.k_length = dice.between(500, 6000);
    c.page_size = dice.between(1, 300);
  }
  if (dice.chance(0.2)) c.batch = dice.between(1, 7);
  if (dice.chance(0.2)) c.heads = c.kv_heads * dice.between(1, 9);
  if (dice.chance(0.02) && !is_packed(c)) c.batch = 0;
  if (dice.chance(0.02)) c.heads = 0;
  if (dice.chance(0.02)) c.heads = c.kv_heads = 0;
  if (dice.chance(0.1)) c.k_length = c.q_length;
  for (; cases::cost(c) > most_cost(c); c.q_length = (c.q_length + 1) / 2) {
    if (c.heads > c.kv_heads && c.kv_heads > 0) c.heads = c.kv_heads;
    else if (c.batch > 1) c.batch = 1;
    else if (c.d + c.dv > 64) c.d = (c.d + 1) / 2, c.dv = (c.dv + 1) / 2;
    else if (c.q_length < 6) c.k_length = c.k_length / 2;
  }
  if (c.addressing == cases::Addressing::packed_self) c.k_length = c.q_length;
  if (dice.chance(0.1)) c.addressing = cases::Addressing::paged_shared;
  if (is_paged(c) && c.key_lengths == cases::Lengths::none) c.key_lengths = cases::Lengths::full;
}

void draw_outputs(Dice& dice, Case& c) {
  using cases::Gradients, cases::Layout, cases::Values, cases::Width;
  c.layout = dice.one_of({Layout::contiguous, Layout::contiguous, Layout::bthd, Layout::interleaved,
                          Layout::reversed, Layout::broadcast_batch, Layout::broadcast_heads,
                          Layout::padded, Layout::gapped, Layout::transposed});
  c.values = dice.one_of({Values::gaussian, Values::gaussian, Values::gaussian, Values::outliers,
                          Values::cold, Values::constant});
  c.lse = !dice.chance(0.2);
  c.weights = dice.chance(0.4);
  c.scores = dice.chance(0.4);
  c.stage = dice.one_of({ScoreStage::raw, ScoreStage::softcapped, ScoreStage::masked});
  c.width = dice.one_of({Width::same, Width::same, Width::f32, Width::f64});
  c.gradients = dice.one_of({Gradients::all, Gradients::all, Gradients::all, Gradients::dq,
                             Gradients::dkdv, Gradients::dv, Gradients::extras});
  if (c.gradients == Gradients::extras && c.bias == cases::Bias::none && !c.alibi && !c.sinks)
    c.gradients = Gradients::all;
}

// Keys and values of types of their own, mostly of a cache of 8 bits, and scales.
void draw_key_types(Dice& dice, Case& c) {
  if (!dice.chance(0.3)) return;
  const auto draw = [&](std::optional<DType>& type, bool& scales) {
    type = dice.one_of({DType::i8, DType::i8, DType::i8, DType::bf16, DType::f16, c.type});
    scales = type == DType::i8 || dice.chance(0.5);
    if (type == c.type) type = std::nullopt;
  };
  draw(c.k_type, c.k_scales);
  draw(c.v_type, c.v_scales);
  if (dice.chance(0.5)) c.v_type = c.k_type, c.v_scales = c.k_scales;
  if (c.layout == cases::Layout::interleaved) c.layout = cases::Layout::padded;  // of one type
  c.gradients = cases::Gradients::all;  // whole numbers have none
}

}  // namespace

Case random_problem(std::uint64_t seed) {
  Case c = random_case(seed);
  Dice dice(seed, 177);
  draw_sizes(dice, c);
  draw_outputs(dice, c);
  if (dice.chance(0.2)) c.block_q = dice.between(1, 70), c.block_k = dice.between(1, 300);
  if (dice.chance(0.2)) c.window_left = dice.between(0, 300);
  if (dice.chance(0.02)) c.mask = cases::Mask::nothing;
  if (dice.chance(0.1)) c.dropout = dice.one_of({1.0 / 65536, 0.1, 0.5, 65535.0 / 65536, 1.0});
  c.dropout_origin = c.dropout_origin && c.dropout > 0;
  draw_key_types(dice, c);
  return c;
}

}  // namespace attend::test
