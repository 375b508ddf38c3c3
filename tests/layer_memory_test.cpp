// Memory of the attention layers: O(length), and whichever allocation fails, the caller is told so
// in the library's own words and nothing is half done.
#include "support/attention_layers.h"
#include "support/counted_allocations.h"

#include <attend/block.h>

namespace attend::test {
namespace {

// A window keeps the time short; the memory is what counts.
const AttentionOptions kNear{.causal = true, .window = {8, 0}};

template <class Call>
double bytes_of(const Call& call) {
  const std::size_t before = bytes_allocated;
  call();
  return static_cast<double>(bytes_allocated - before);
}

TEST(LayerMemory, grows_with_the_length_and_not_with_its_square) {
  const MultiHeadAttention layer = drawn({.model_dim = 64, .rotary = Rotary{}});
  AttentionBlock block({.attention = {.model_dim = 64}, .hidden_dim = 64});
  const auto bytes = [&](std::int64_t length, bool train, bool whole_block) {
    const Tensor x = numbers({1, length, 64}, DType::f32, 1);
    return bytes_of([&] {
      if (whole_block && train) block.backward(x, block.forward_train(x, kNear).second);
      else if (whole_block) block.forward(x, kNear);
      else if (train) layer.backward(x, layer.forward_train(x, kNear).second);
      else layer.forward(x, kNear);
    });
  };
  for (const bool train : {false, true})
    for (const bool whole_block : {false, true}) {
      bytes(4096, train, whole_block);  // the first workspaces, and the packed weights
      const double one = bytes(2048, train, whole_block), two = bytes(4096, train, whole_block);
      EXPECT_LT(two, 2.2 * one) << "train " << train << " block " << whole_block;
      // Tensors [4096, 64] f32 of 1 MiB each: projections, heads, output, and copies for training.
      EXPECT_LT(two, (train ? 64.0 : 20.0) * (1 << 20)) << "block " << whole_block;
    }
}

// One token on top of a long cache costs as much as on top of a short one.
TEST(LayerMemory, of_a_decoded_token_does_not_grow_with_the_cache) {
  for (const std::int64_t page_size : {0, 16}) {
    const MultiHeadAttention layer = drawn({.model_dim = 16, .heads = 2, .rotary = Rotary{}});
    const auto bytes = [&](std::int64_t length) {
      KvCache cache = layer.make_cache(1, length + 1, page_size);
      layer.append(Tensor({1, length, 16}), Tensor({1, length, 16}), cache);
      const Tensor token = numbers({1, 1, 16}, DType::f32, 2);
      return bytes_of([&] { layer.forward(token, cache, kNear); });
    };
    bytes(64);
    // The first time, also what pieces of keys leave to be joined: less than 256 bytes for 256
    // keys.
    const double more = bytes(8192), fewer = bytes(128);
    EXPECT_LE(more, fewer + 8192) << "page_size " << page_size;
  }
}

// Rows that are one row repeated, and a result that nothing is written to: what is leased on the
// way would be 2^64 bytes, which is no small number.
TEST(LayerMemory, sizes_that_overflow_are_out_of_memory) {
  const float one = 1;
  const auto result = [](const Shape& shape) {
    return TensorView(reinterpret_cast<void*>(std::uintptr_t{1} << 60), DType::f32, shape);
  };
  const std::int64_t rows = std::int64_t{1} << 42;
  const FeedForward wide({.model_dim = 1, .hidden_dim = std::int64_t{1} << 20});
  EXPECT_THROW(wide.forward_into(ConstTensorView(&one, {rows, 1}, {0, 0}), result({rows, 1})),
               OutOfMemory);
  // Two that fit, of 2^63 bytes each.
  const FeedForward gated(
      {.model_dim = 1, .hidden_dim = std::int64_t{1} << 19, .activation = Activation::swiglu});
  EXPECT_THROW(gated.forward_into(ConstTensorView(&one, {rows, 1}, {0, 0}), result({rows, 1})),
               OutOfMemory);
  // A copy, since no stride leads from row to row.
  const float two[] = {1, 2};
  const std::int64_t many = std::int64_t{1} << 56;
  const ConstTensorView x(two, {2, many, 32}, {1, 0, 0});
  EXPECT_THROW(Linear({.in = 32, .out = 1}).forward_into(x, result({2, many, 1})), OutOfMemory);
}

// Lets the first, second, ... allocation of a call fail until none does, and looks after each.
template <class Call, class After>
void fail_each_allocation(const char* name, const Call& call, const After& after) {
  std::size_t failures = 0;
  for (bool finished = false; !finished;) {
    failing_allocation = allocations + ++failures;
    std::string error;
    try {
      call();
      finished = allocations < failing_allocation;  // else: one failed without need, all the same
      failing_allocation = 0;
    } catch (const OutOfMemory&) {
      failing_allocation = 0;
    } catch (const std::exception& e) {
      failing_allocation = 0;
      error = e.what();
    }
    ASSERT_EQ(error, "") << name << ": allocation " << failures;
    if (!finished) after();
    ASSERT_LT(failures, 5000U) << name;
  }
  EXPECT_GT(failures, 3U) << name;
}

// Many rows want the weights packed before; without memory for that they are packed on the way.
TEST(LayerMemory, what_is_only_faster_is_done_without) {
  const Linear linear(numbers({40, 70}, DType::f32, 1));  // shared: not kept packed
  Context one({.threads = 1});
  const auto right_without = [&](std::int64_t rows) {  // an allocation: how many of them
    const Tensor x = numbers({rows, 70}, DType::f32, 2), expected = linear.forward(x, one);
    int count = 0;
    fail_each_allocation(
        "rows",
        [&] {
          const std::size_t nth = failing_allocation.exchange(0) - allocations;
          Context fresh({.threads = 1});  // that has kept no memory
          const std::size_t failing = allocations + nth;
          failing_allocation = failing;
          const Tensor y = linear.forward(x, fresh);
          if (allocations >= failing) ++count;
          failing_allocation = 0;
          ASSERT_EQ(difference(y, expected), "");
          failing_allocation = failing;
        },
        [] {});
    return count;
  };
  right_without(300);  // the list of freed memory has grown after this
  EXPECT_GT(right_without(300), 0);
}

TEST(LayerMemory, a_packed_copy_is_done_without) {
  const Linear linear({.in = 70, .out = 40, .seed = 1});
  Context one({.threads = 1});
  const Tensor x = numbers({3, 70}, DType::f32, 2), expected = linear.forward(x, one);
  int without = 0;
  bool failed = true;
  for (std::size_t nth = 1; failed; ++nth) {
    const Linear fresh = linear;
    failing_allocation = allocations + nth;
    try {
      const Tensor y = fresh.forward(x, one);
      failed = allocations >= failing_allocation;
      failing_allocation = 0;
      if (failed) ++without;
      ASSERT_EQ(difference(y, expected), "");
    } catch (const OutOfMemory&) {
      failing_allocation = 0;
    }
    ASSERT_EQ(difference(fresh.forward(x, one), expected), "");
  }
  EXPECT_GT(without, 0);
}

TEST(LayerMemory, any_allocation_that_fails_is_out_of_memory) {
  const TemporaryFolder folder;
  const MultiHeadAttentionOptions options{
      .model_dim = 8, .heads = 4, .key_heads = 2, .rotary = Rotary{}};
  const MultiHeadAttention layer = drawn(options);
  AttentionBlock block({.attention = options, .cross = true, .hidden_dim = 5});
  const Tensor x = numbers({2, 3, 8}, DType::f32, 3);
  const auto [y, saved] = layer.forward_train(x, kNear);
  const auto [z, block_saved] = block.forward_train(x, x, kNear);
  const fs::path fused = folder / "layer", heads = folder / "heads", whole = folder / "block",
                 fresh = folder / "new";
  layer.save(fused);
  layer.save(heads, true);
  block.save(whole);
  const auto nothing = [] {};
  fail_each_allocation(
      "make", [&] { MultiHeadAttention{options}; }, nothing);
  fail_each_allocation(
      "forward", [&] { layer.forward(x, kNear); }, nothing);
  fail_each_allocation(
      "forward_train", [&] { layer.forward_train(x, kNear); }, nothing);
  fail_each_allocation(
      "backward", [&, &s = saved] { layer.backward(x, s); }, nothing);
  fail_each_allocation(
      "trace", [&] { layer.trace(x, kNear); }, nothing);
  fail_each_allocation(
      "split", [&] { MultiHeadAttention::join(options, layer.split()); }, nothing);
  fail_each_allocation(
      "parameters", [&] { layer.parameters(); }, nothing);
  fail_each_allocation(
      "writable_parameters", [&] { block.writable_parameters(); }, nothing);
  fail_each_allocation(
      "copy", [&] { const AttentionBlock copy = block; }, nothing);
  fail_each_allocation(
      "load", [&] { MultiHeadAttention::load(fused); }, nothing);
  fail_each_allocation(
      "load heads", [&] { MultiHeadAttention::load(heads); }, nothing);
  fail_each_allocation(
      "save", [&] { layer.save(fresh); }, nothing);
  fail_each_allocation(
      "save heads", [&] { layer.save(fresh, true); }, nothing);
  fail_each_allocation(
      "block", [&] { AttentionBlock{block.options()}; }, nothing);
  fail_each_allocation(
      "block forward", [&] { block.forward(x, x, kNear); }, nothing);
  fail_each_allocation(
      "block trace", [&] { block.trace(x, x, kNear); }, nothing);
  fail_each_allocation(
      "block backward", [&, &s = block_saved] { block.backward(x, s); }, nothing);
  fail_each_allocation(
      "block load", [&] { AttentionBlock::load(whole); }, nothing);
  fail_each_allocation(
      "block save", [&] { block.save(fresh); }, nothing);
  fail_each_allocation(
      "cache", [&] { layer.make_cache(2, 8, 3); }, nothing);
  fail_each_allocation(
      "options", [] { const AttentionOptions made{.mask = Tensor({3}), .bias = Tensor({3})}; },
      nothing);
  // The memory of a message itself.
  KvCache cache = layer.make_cache(2, 8);
  const auto refused = [](const auto& call) {
    return [&call] {
      try {
        call();
      } catch (const InvalidArgument&) {
      }
    };
  };
  const auto odd_heads = [] { MultiHeadAttention({.model_dim = 512, .heads = 7}); };
  const auto long_way = [&] { cache.truncate(0, 100); };
  const auto no_sequence = [&] { static_cast<void>(cache.length(7)); };
  const auto no_tokens = [&] { cache.append({}, {}); };
  const auto no_cache = [] { KvCache({.key_heads = 0}); };
  const auto no_memory = [&] { block.forward(x); };
  const auto no_decoder = [&] { block.forward(x, cache); };
  const auto no_step = [&] { static_cast<void>(Trace().at("a step whose name is long")); };
  fail_each_allocation("odd_heads", refused(odd_heads), nothing);
  fail_each_allocation("long_way", refused(long_way), nothing);
  fail_each_allocation("no_sequence", refused(no_sequence), nothing);
  fail_each_allocation("no_tokens", refused(no_tokens), nothing);
  fail_each_allocation("no_cache", refused(no_cache), nothing);
  fail_each_allocation("no_memory", refused(no_memory), nothing);
  fail_each_allocation("no_decoder", refused(no_decoder), nothing);
  fail_each_allocation("no_step", refused(no_step), nothing);
}

// Also of a copy, whose pages come back without memory being asked for.
TEST(LayerMemory, a_cache_is_as_before_when_memory_ends) {
  const MultiHeadAttention layer = drawn({.model_dim = 8, .heads = 4, .rotary = Rotary{}});
  AttentionBlock block({.attention = layer.options(), .hidden_dim = 5});
  const Tensor x = numbers({2, 3, 8}, DType::f32, 4);
  const KvCache first = [&] {
    KvCache cache = layer.make_cache(2, 12, 2);
    layer.forward(x, cache, kNear);
    return cache;
  }();
  // From here on the weights are packed: without memory for that, a call would go on.
  layer.forward(x, kNear);
  block.forward(x, kNear);
  for (const bool whole_block : {false, true}) {
    KvCache cache = first;
    const auto step = [&] {
      if (whole_block) block.forward(x, cache, kNear);
      else layer.forward(x, cache, kNear);
    };
    fail_each_allocation("decode", step, [&] {
      EXPECT_EQ(cache.length(0), 3);
      EXPECT_EQ(cache.length(1), 3);
      EXPECT_EQ(cache.free_pages(), first.free_pages());
      cache = first;
    });
    EXPECT_EQ(cache.length(1), 6);
  }
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__clang__)  // else freed memory is not kept
TEST(LayerMemory, saved_options_keep_no_second_copy_of_a_tensor_that_was_given_away) {
  const MultiHeadAttention layer = drawn({.model_dim = 8, .heads = 2});
  const Tensor x = numbers({1, 1024, 8}, DType::f32, 1);
  Context owner;  // of the mask's memory, which it keeps when the mask is gone
  const void* given = nullptr;
  const auto saved = [&] {
    Tensor mask = owner.make_tensor({1024, 1024}, DType::u8);
    std::fill_n(mask.data<std::uint8_t>(), mask.count(), std::uint8_t{1});
    const AttentionOptions options{.mask = std::move(mask)};
    given = options.mask.data();
    return layer.forward_train(x, options).second;
  }();
  EXPECT_EQ(owner.make_tensor({1024, 1024}, DType::u8).view().data(), given);
}
#endif

}  // namespace
}  // namespace attend::test
