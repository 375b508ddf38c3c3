// What the options point at: lengths, masks, biases, and their gradients.
#include "make.h"

#include <attend/option_list.h>

#include <cmath>
#include <stdexcept>

namespace attend::cases {
namespace {

// Numbers and flags have a field of their name and type, whole numbers may have one.
void set_numbers(const Case& c, AttentionOptions& options) {
  for_each_option(options, [&]<class Member>(const Option& option, Member& member) {
    const std::string_view name = option.name;
    bool found = !std::is_same_v<Member, double> && !std::is_same_v<Member, bool> &&
                 !std::is_same_v<Member, std::optional<double>>;
    for_each_field(c, [&]<class Field>(const char* key, const Field& field) {
      if constexpr (std::is_same_v<Field, Member>)
        if (key == name) member = field, found = true;
    });
    if (!found) throw std::logic_error("case: there is no field '" + std::string(name) + "'");
  });
}

// The case's flag of this name.
bool flag_of(const Case& c, std::string_view name) {
  std::optional<bool> found;
  for_each_field(c, [&]<class Field>(const char* key, const Field& field) {
    if constexpr (std::is_same_v<Field, bool>)
      if (key == name) found = field;
  });
  if (!found) throw std::logic_error("case: there is no flag '" + std::string(name) + "'");
  return *found;
}

TensorView index_tensor(const Case& c, Arena& arena, const Shape& shape,
                        const std::vector<std::int64_t>& values) {
  const TensorView view = arena.place(shape, c.index_type, Layout::contiguous, false);
  std::size_t n = 0;
  for_each_index(shape,
                 [&](const Shape& index) { store(view, index, static_cast<double>(values[n++])); });
  return view;
}

std::vector<std::int64_t> cumulative(const std::vector<std::int64_t>& lengths) {
  std::vector<std::int64_t> sums = {0};
  for (const std::int64_t length : lengths) sums.push_back(sums.back() + length);
  return sums;
}

void set_positions(const Case& c, const Sequences& s, Arena& arena, AttentionOptions& options) {
  if (is_packed(c))
    options.cu_seqlens_q = index_tensor(c, arena, {c.batch + 1}, cumulative(s.q_lengths));
  if (c.addressing == Addressing::packed)
    options.cu_seqlens_k = index_tensor(c, arena, {c.batch + 1}, cumulative(s.k_lengths));
  if (is_paged(c))
    options.block_table =
        index_tensor(c, arena, {c.batch, key_extent(c) / c.page_size}, s.block_table);
  if (c.key_lengths != Lengths::none)
    options.key_lengths = index_tensor(c, arena, {c.batch}, s.key_lengths);

  options.window = {c.window_left, c.window_right};
  if (c.key_offset != 0) options.key_offset = c.key_offset;
  if (c.query_offset == Offset::one || (c.query_offset == Offset::by_default && c.key_offset != 0))
    options.query_offset = c.key_offset + c.offset;
  if (c.query_offset == Offset::each) {
    std::vector<std::int64_t> offsets;
    for (std::int64_t b = 0; b < c.batch; ++b)
      offsets.push_back(c.key_offset + c.offset + 3 * b - b % 2 * 4);
    options.query_offset = ConstTensorView(index_tensor(c, arena, {c.batch}, offsets));
  }
}

// A number other than 0 that a reader of too few of its bytes would take for 0.
double visible_value(DType type, std::uint64_t n) {
  switch (type) {
    case DType::i64: return n % 2 ? 0x1p40 : 1;
    case DType::i32: return n % 2 ? 0x1p16 : -1;
    case DType::i8: return n % 2 ? -128 : 1;
    case DType::u8: return n % 2 ? 128 : 1;
    default: return 1;
  }
}

// Fewer keys than there are, but not 1: a last dimension of 1 is repeated, not short.
std::int64_t shorter_extent(const Case& c) {
  const std::int64_t extent = key_extent(c), shorter = extent - 1 - extent / 3;
  return shorter <= 1 ? 0 : shorter;
}

Shape shape_of_mask(const Case& c) {
  const std::int64_t b = c.batch, h = c.heads, q = query_extent(c), k = key_extent(c);
  switch (c.mask) {
    case Mask::none: break;
    case Mask::full: return {b, h, q, k};
    case Mask::per_pair: return {1, 1, q, k};
    case Mask::per_key: return {b, 1, 1, k};
    case Mask::query_key: return {q, k};
    case Mask::key: return {k};
    case Mask::per_head: return {1, h, 1, 1};
    case Mask::rows: return {b, 1, q, k};
    case Mask::short_full: return {b, h, q, shorter_extent(c)};
    case Mask::short_key: return {shorter_extent(c)};
    case Mask::nothing: return {1};
  }
  return {};
}

void set_mask(const Case& c, Arena& arena, AttentionOptions& options) {
  const TensorView mask = arena.place(shape_of_mask(c), c.mask_type, layout_of_rows(c), false);
  const Random random(c.seed, kMask);
  std::uint64_t n = 0;
  for_each_index(mask.shape(), [&](const Shape& index) {
    const bool hidden = c.mask == Mask::nothing || random.chance(1.0 / 3, n) ||
                        (c.mask == Mask::rows && index[2] % 3 == 1);
    store(mask, index, hidden ? 0 : visible_value(c.mask_type, n));
    ++n;
  });
  options.mask = mask;
}

void set_blocks(const Case& c, Arena& arena, AttentionOptions& options) {
  const auto blocks = [](std::int64_t length, std::int64_t size) {
    return (length + size - 1) / size;
  };
  const Shape shape = {c.blocks == BlockMask::shared ? 1 : c.batch,
                       c.blocks == BlockMask::full ? c.heads : 1,
                       blocks(query_extent(c), c.block_q), blocks(key_extent(c), c.block_k)};
  const TensorView visible = arena.place(shape, c.mask_type, layout_of_rows(c), false);
  const Random random(c.seed, kBlocks);
  std::uint64_t n = 0;
  for_each_index(shape, [&](const Shape& index) {
    const bool hidden =
        random.chance(1.0 / 3, n) || (c.blocks == BlockMask::rows && index[2] % 2 == 1);
    store(visible, index, hidden ? 0 : visible_value(c.mask_type, n));
    ++n;
  });
  options.blocks = {visible, c.block_q, c.block_k};
}

Shape shape_of_bias(const Case& c) {
  const std::int64_t b = c.batch, h = c.heads, q = query_extent(c), k = key_extent(c);
  switch (c.bias) {
    case Bias::none: break;
    case Bias::full:
    case Bias::infinite: return {b, h, q, k};
    case Bias::per_pair: return {1, 1, q, k};
    case Bias::per_key: return {b, 1, 1, k};
    case Bias::head_query_key: return {h, q, k};
    case Bias::query_key: return {q, k};
    case Bias::key: return {k};
    case Bias::per_head: return {1, h, 1, 1};
    case Bias::short_full: return {b, h, q, shorter_extent(c)};
  }
  return {};
}

void set_bias(const Case& c, Arena& arena, AttentionOptions& options) {
  const DType type = c.bias_f32 ? DType::f32 : c.type;
  const TensorView bias = arena.place(shape_of_bias(c), type, layout_of_rows(c), false);
  const Random random(c.seed, kBias);
  std::uint64_t n = 0;
  for_each_index(bias.shape(), [&](const Shape& index) {
    const bool infinite =
        c.bias == Bias::infinite && (random.chance(0.25, 2 * n + 1) || index[2] % 4 == 2);
    store(bias, index, infinite ? -INFINITY : 1.5 * random.gaussian(n));
    ++n;
  });
  options.bias = bias;
}

bool of_whole_numbers(const Case& c, std::string_view option) {
  return (option == "k_scales" && c.k_type == DType::i8) ||
         (option == "v_scales" && c.v_type == DType::i8);
}

// One number for each key and key head, where the case has a flag of the option's name. Slots of
// pages that are nobody's keep their NaN.
void set_key_tensors(const Sequences& s, Instance& instance) {
  const Case& c = instance.problem;
  std::uint64_t stream = kKeyTensors;
  const auto fill = [&](TensorOrView& option, double level) {
    const Shape& k = instance.k.shape();
    const TensorView view =
        instance.arena->place({k[0], k[1], k[2]}, DType::f32, layout_of_rows(c), false);
    const Random random(c.seed, stream);
    std::uint64_t n = 0;
    for_each_index(view.shape(), [&](const Shape& index) {
      const double x = level * (0.75 + 0.25 * random.gaussian(n++));
      if (!is_paged(c) || s.addressed[static_cast<std::size_t>(index[0] * c.page_size + index[2])])
        store(view, index, x);
    });
    option = view;
  };
  for_each_option(instance.options, [&]<class Member>(const Option& option, Member& member) {
    if constexpr (std::is_same_v<Member, TensorOrView>)
      if (option.kind == OptionKind::key_tensor && ++stream && flag_of(c, option.name))
        fill(member, of_whole_numbers(c, option.name) ? 1 / kWholeNumbers : 1);
  });
}

// [heads] slopes or sinks.
TensorView per_head(const Case& c, Arena& arena, double (*value)(const Case&, std::int64_t h)) {
  const TensorView view = arena.place({c.heads}, statistics_type(c), Layout::contiguous, false);
  for (std::int64_t h = 0; h < c.heads; ++h) store(view, {h}, value(c, h));
  return view;
}

double slope_of(const Case&, std::int64_t h) { return 0.6 / static_cast<double>(1 + h); }

double sink_of(const Case& c, std::int64_t h) {
  // Beside scores near -120 a sink near 0 would take all the weight.
  const double level = c.values == Values::cold ? -118 : 0;
  return level + Random(c.seed, kSinks).gaussian(static_cast<std::uint64_t>(h));
}

}  // namespace

DType statistics_type(const Case& c) { return c.type == DType::f64 ? DType::f64 : DType::f32; }

void make_options(const Sequences& sequences, Instance& instance) {
  const Case& c = instance.problem;
  Arena& arena = *instance.arena;
  AttentionOptions& options = instance.options;
  set_numbers(c, options);
  set_positions(c, sequences, arena, options);
  if (c.mask != Mask::none) set_mask(c, arena, options);
  if (c.blocks != BlockMask::none) set_blocks(c, arena, options);
  if (c.bias != Bias::none) set_bias(c, arena, options);
  set_key_tensors(sequences, instance);
  if (c.alibi) options.alibi = per_head(c, arena, slope_of);
  if (c.sinks) options.sinks = per_head(c, arena, sink_of);
  if (c.dropout != 0) {
    options.dropout.p = c.dropout;
    options.dropout.seed = 0x9e3779b97f4a7c15u + c.seed;
    options.dropout.offset = 3;
    if (c.dropout_origin)
      options.dropout.origin = {1, 2, 7, c.key_offset != 0 ? 0 : 259, c.heads + 3};
  }

  instance.outputs.stage = c.stage;
  if (c.blocks != BlockMask::none) {
    instance.visited_blocks = std::make_unique<std::int64_t>(-1);
    instance.outputs.visited_blocks = instance.visited_blocks.get();
  }
  if (c.gradients != Gradients::all && c.gradients != Gradients::extras) return;
  AttentionGradients& gradients = instance.gradients;
  if (options.bias)
    gradients.dbias =
        arena.place(options.bias.shape(), options.bias.dtype(), layout_of_rows(c), true);
  if (options.sinks)
    gradients.dsinks = arena.place({c.heads}, statistics_type(c), Layout::contiguous, true);
  if (options.alibi)
    gradients.dalibi = arena.place({c.heads}, statistics_type(c), Layout::contiguous, true);
}

}  // namespace attend::cases
