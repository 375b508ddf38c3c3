// What attention over ranks costs: the bytes that are moved, against the least that a scheme can do
// with, how evenly work and tokens are divided, and whether plan() says so beforehand.
#include <attend/distributed.h>
#include <attend/plan.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <new>
#include <string>
#include <vector>

namespace attend::test {
namespace {

using namespace distributed;

// ---- Bytes --------------------------------------------------------------------------------------

constexpr std::int64_t kRecord = 1600;  // more than the record of a call, from one rank to another

struct Sent {
  std::int64_t forward = 0, backward = 0;  // of all ranks, records left out
};

// A rank's tensors of a problem of zeros.
struct RankTensors {
  RankTensors(const WholeSizes& sizes, const Layouts& layouts, int rank)
      : q(Shape{sizes.batch, sizes.heads, layouts.queries.owned(rank), sizes.d}, sizes.type),
        k(Shape{sizes.batch, sizes.key_heads, layouts.keys.owned(rank), sizes.d}, sizes.type),
        out(q), dq(q), dk(k), dv(k),
        lse(Shape{sizes.batch, sizes.heads, layouts.queries.owned(rank)}) {}
  void call(bool backward, Group& group, const Layouts& layouts, const AttentionOptions& options,
            const DistributedOptions& distributed, Context& context) {
    if (!backward)
      return distributed::attention(group, layouts, q, k, k, out, options, {}, distributed,
                                    context);
    distributed::attention_backward(
        group, layouts, {.q = q, .k = k, .v = k, .out = out, .lse = lse, .dout = q, .dlse = {}},
        options, {.dq = dq, .dk = dk, .dv = dv, .dbias = {}, .dsinks = {}, .dalibi = {}},
        distributed, context);
  }
  Tensor q, k, out, dq, dk, dv, lse;
};

// A problem of zeros, and what was sent for it.
Sent sent_by(const WholeSizes& sizes, const AttentionOptions& options, const Layouts& layouts,
             const DistributedOptions& distributed) {
  const int ranks = layouts.queries.ranks();
  Context context({.threads = 1});
  const ThreadGroup group(ranks);
  const auto all = [&] {
    std::int64_t sum = 0;
    for (int r = 0; r < ranks; ++r) sum += group.bytes_sent(r);
    return sum;
  };
  std::int64_t records = 0;
  const auto run = [&](bool backward) {
    const std::int64_t before = all();
    const auto thrown = group.run([&](Group& mine) {
      RankTensors(sizes, layouts, mine.rank())
          .call(backward, mine, layouts, options, distributed, context);
    });
    for (const auto& error : thrown) EXPECT_FALSE(error);
    return all() - before - records;
  };
  // A call that does nothing sends its records alone.
  const std::int64_t before = all();
  group.run([&](Group& mine) {
    const Tensor none(Shape{1, 0, 0, 1});
    Tensor out(none.shape());
    const Layouts empty{Layout::serpentine({0}, ranks), Layout::serpentine({0}, ranks)};
    distributed::attention(mine, empty, none, none, none, out, {}, {}, {}, context);
  });
  records = all() - before;
  EXPECT_GT(records, 0);
  EXPECT_LE(records, kRecord * ranks * ranks);
  Sent sent;
  sent.forward = run(false);
  sent.backward = run(true);
  return sent;
}

std::int64_t sum_sent(const std::vector<RankCost>& costs) {
  std::int64_t sum = 0;
  for (const RankCost& cost : costs) sum += cost.sent;
  return sum;
}

// What no way of a scheme can do without, counted position by position. Causal, 4 ranks, T = 4096.
struct Least {
  std::int64_t keys = 0;     // rows of keys that a rank's queries see and that it has not
  std::int64_t queries = 0;  // rows of queries that see a rank's keys and that it has not
};
Least least_rows(const Layout& layout, std::int64_t window) {
  Least least;
  const std::int64_t length = layout.length(0);
  for (int r = 0; r < layout.ranks(); ++r) {
    std::vector<bool> key(static_cast<std::size_t>(length)), query(key.size());
    for (std::int64_t i = 0; i < length; ++i)
      for (std::int64_t j = std::max<std::int64_t>(0, i - window); j <= i; ++j) {
        if (layout.owner(0, i) == r && layout.owner(0, j) != r)
          key[static_cast<std::size_t>(j)] = true;
        if (layout.owner(0, j) == r && layout.owner(0, i) != r)
          query[static_cast<std::size_t>(i)] = true;
      }
    least.keys += std::count(key.begin(), key.end(), true);
    least.queries += std::count(query.begin(), query.end(), true);
  }
  return least;
}

TEST(bytes, are_at_most_1_02_of_the_least) {
  constexpr std::int64_t kLength = 4096, kHeads = 2, kKeyHeads = 1, kD = 64, kBytes = 4;
  constexpr int kRanks = 4;
  const WholeSizes sizes{.queries = kLength,
                         .keys = kLength,
                         .heads = kHeads,
                         .key_heads = kKeyHeads,
                         .d = kD,
                         .dv = kD};
  for (const std::int64_t window : {kUnlimited, std::int64_t{600}}) {
    const AttentionOptions options{.causal = true, .window = {.left = window}};
    const Layouts layouts = balanced_layouts(sizes, options, kRanks);
    const Least least = least_rows(layouts.queries, std::min(window, kLength));
    const std::int64_t row = kD * kBytes;
    const auto within = [](std::int64_t sent, std::int64_t bound) {
      EXPECT_GE(sent, bound);
      EXPECT_LE(static_cast<double>(sent), 1.02 * static_cast<double>(bound));
    };
    {  // Keys and values that are seen; backward also q, dout and two sums of the rows that see.
      const DistributedOptions gather{.scheme = Scheme::gather};
      const Sent sent = sent_by(sizes, options, layouts, gather);
      within(sent.forward, least.keys * kKeyHeads * 2 * row);
      if (window == kUnlimited) {  // as docs/distributed.md has it
        EXPECT_EQ(sent.forward,
                  2 * kKeyHeads * kD * kBytes * (kRanks - 1) * (kLength - 128 * kRanks));
      }
      within(sent.backward,
             least.keys * kKeyHeads * 2 * row + least.queries * kHeads * (2 * row + 2 * 8));
      const DistributedPlan cost = plan(layouts, sizes, options, gather);
      EXPECT_EQ(sum_sent(cost.forward), sent.forward);
      EXPECT_EQ(sum_sent(cost.backward), sent.backward);
    }
    {  // In fast, sums of dk and dv in f32 of the keys that were received.
      const DistributedOptions fast{.scheme = Scheme::gather, .bits = Bits::fast};
      const Sent sent = sent_by(sizes, options, layouts, fast);
      within(sent.backward, least.keys * kKeyHeads * 2 * (row + kD * 4));
      EXPECT_EQ(sum_sent(plan(layouts, sizes, options, fast).backward), sent.backward);
    }
    {  // One of the ranks has the only key head: rows of q, k, v go to it, those of out come back.
      const DistributedOptions heads{.scheme = Scheme::heads};
      const Sent sent = sent_by(sizes, options, layouts, heads);
      const std::int64_t rows = kLength - layouts.queries.owned(0);
      within(sent.forward, rows * (2 * kHeads + 2 * kKeyHeads) * row);
      within(sent.backward, rows * (3 * kHeads + 4 * kKeyHeads) * row);
      const DistributedPlan cost = plan(layouts, sizes, options, heads);
      EXPECT_EQ(sum_sent(cost.forward), sent.forward);
      EXPECT_EQ(sum_sent(cost.backward), sent.backward);
    }
  }
}

// One token against a long cache: the query goes to the keys, and a state of each chunk comes back.
TEST(bytes, of_few_queries_are_a_fraction_of_the_keys) {
  const WholeSizes sizes{.queries = 1, .keys = 4096, .heads = 8, .key_heads = 2, .d = 64, .dv = 64};
  const Layouts layouts{Layout::serpentine({1}, 4), Layout::serpentine({4096}, 4)};
  const DistributedOptions gather{.scheme = Scheme::gather};
  const Sent sent = sent_by(sizes, {}, layouts, gather);
  const std::int64_t keys = 3 * 4096 * 2 * 2 * 64 * 4, chunks = 12;  // of other ranks
  EXPECT_EQ(sent.forward, 8 * (chunks * (64 + 4) * 8 + 3 * 64 * 4));
  EXPECT_LT(sent.forward, keys / 50);
  const DistributedPlan cost = plan(layouts, sizes, {}, gather);
  EXPECT_EQ(sum_sent(cost.forward), sent.forward);
  for (const RankCost& rank : cost.forward) EXPECT_LT(rank.memory, keys / 50);  // nor are keys held
}

// Keys of a cache of few bits travel as they are, with their scales, and the plan counts them so.
TEST(bytes, of_keys_of_a_type_of_their_own_are_planned) {
  for (const std::pair<DType, DType>& types :
       {std::pair{DType::i8, DType::i8}, {DType::bf16, DType::i8}, {DType::f16, DType::bf16}})
    for (const Scheme scheme : {Scheme::gather, Scheme::heads, Scheme::automatic}) {
      const DType k_type = types.first, v_type = types.second;
      const WholeSizes sizes{.queries = 700,
                             .keys = 700,
                             .heads = 4,
                             .key_heads = 2,
                             .d = 16,
                             .dv = 24,
                             .k_type = k_type,
                             .v_type = v_type};
      const AttentionOptions causal{.causal = true};
      const Layouts layouts = balanced_layouts(sizes, causal, 2);
      const DistributedOptions how{.scheme = scheme};
      Context context({.threads = 1});
      const ThreadGroup group(2);
      const auto thrown = group.run([&](Group& mine) {
        const std::int64_t rows = layouts.queries.owned(mine.rank());
        const Tensor q(Shape{1, 4, rows, 16}), k(Shape{1, 2, rows, 16}, k_type),
            v(Shape{1, 2, rows, 24}, v_type), scales(Shape{1, 2, rows});
        Tensor out(Shape{1, 4, rows, 24});
        AttentionOptions options = causal;
        if (k_type == DType::i8) options.k_scales = scales;
        if (v_type == DType::i8) options.v_scales = scales;
        distributed::attention(mine, layouts, q, k, v, out, options, {}, how, context);
      });
      for (const auto& error : thrown) EXPECT_FALSE(error);
      const DistributedPlan cost = plan(layouts, sizes, causal, how);
      const std::int64_t sent = group.bytes_sent(0) + group.bytes_sent(1),
                         planned = sum_sent(cost.forward);
      EXPECT_GE(sent, planned) << name_of(k_type) << ' ' << name_of(v_type);
      EXPECT_LE(sent, planned + 2 * kRecord) << name_of(k_type) << ' ' << name_of(v_type);
    }
}

// ---- Balance ------------------------------------------------------------------------------------

double balance_of(const std::vector<RankCost>& costs) {
  double most = 0, sum = 0;
  for (const RankCost& cost : costs) most = std::max(most, cost.products), sum += cost.products;
  return most * static_cast<double>(costs.size()) / sum;
}

TEST(balance, work_is_divided_evenly) {
  const auto both = [](const WholeSizes& sizes, const AttentionOptions& options, int ranks) {
    const DistributedPlan cost =
        plan(balanced_layouts(sizes, options, ranks), sizes, options, {.scheme = Scheme::gather});
    return std::max(balance_of(cost.forward), balance_of(cost.backward));
  };
  constexpr std::int64_t kMillion = 1 << 20;
  EXPECT_LE(both({.queries = kMillion, .keys = kMillion}, {.causal = true}, 1024), 1.001);
  EXPECT_LE(both({.queries = kMillion, .keys = kMillion}, {}, 64), 1.001);
  EXPECT_LE(both({.queries = 16384, .keys = 16384}, {.causal = true}, 16), 1.01);
  EXPECT_LE(both({.queries = 65536, .keys = 65536}, {.causal = true, .window = {.left = 9000}}, 16),
            1.04);  // dealt out; neighbours together, where the last keys are seen by few queries:
  EXPECT_LE(both({.queries = 65536, .keys = 65536}, {.causal = true, .window = {.left = 4000}}, 16),
            1.25);
  // One long sequence among many short ones.
  const Tensor starts({std::int64_t{0}, std::int64_t{20000}, std::int64_t{20300},
                       std::int64_t{24000}, std::int64_t{24001}, std::int64_t{32768}},
                      {6});
  EXPECT_LE(
      both({.queries = 32768, .keys = 32768}, {.causal = true, .cu_seqlens_q = starts.view()}, 8),
      1.1);
}

// Whatever hides pairs, memory is divided as well: what nobody sees by count, and no rank has more
// than twice its share.
TEST(balance, tokens_are_divided_too) {
  const auto most_owned = [](const Layout& layout) {
    std::int64_t most = 0, sum = 0;
    for (int r = 0; r < layout.ranks(); ++r) {
      most = std::max(most, layout.owned(r));
      sum += layout.owned(r);
    }
    EXPECT_EQ(sum, layout.total());
    return most;
  };
  constexpr std::int64_t kMillion = 1 << 20, kLong = 1 << 16;
  {  // The last 4256 keys are seen.
    const Layouts layouts = balanced_layouts({.queries = 256, .keys = kMillion},
                                             {.causal = true, .window = {.left = 4000}}, 16);
    EXPECT_EQ(most_owned(layouts.keys), kMillion / 16);
    std::vector<int> seen(16);  // granules of these
    for (std::int64_t j = kMillion - 256; j >= kMillion - 4256; j -= 256)
      ++seen[static_cast<std::size_t>(layouts.keys.owner(0, j))];
    EXPECT_LE(*std::max_element(seen.begin(), seen.end()), 2);
  }
  {  // Padding.
    const Tensor lengths({std::int64_t{20000}}, {1});
    const Layouts layouts = balanced_layouts(
        {.queries = kLong, .keys = kLong},
        {.causal = true, .window = {.left = 100}, .key_lengths = lengths.view()}, 16);
    EXPECT_EQ(most_owned(layouts.queries), kLong / 16);
  }
  {  // One of eight is long: most of the pairs are where all eight are.
    constexpr std::int64_t kShort = 9000;
    const Tensor lengths({kLong, kShort, kShort, kShort, kShort, kShort, kShort, kShort}, {8});
    const Layouts layouts = balanced_layouts(
        {.queries = kLong, .keys = kLong, .batch = 8},
        {.causal = true, .window = {.left = 100}, .key_lengths = lengths.view()}, 16);
    EXPECT_LE(most_owned(layouts.queries), 2 * kLong / 16);
  }
  for (const int ranks : {1, 3, 16, 300})  // more than there are granules
    for (const std::int64_t left : {0, 10, 3000}) {
      const Layouts layouts = balanced_layouts({.queries = 9000, .keys = kLong},
                                               {.causal = true, .window = {.left = left}}, ranks);
      const std::int64_t granules = (kLong / 256 + ranks - 1) / ranks;
      EXPECT_LE(most_owned(layouts.keys), 2 * 256 * granules);
    }
}

// Their sum is no number that there is.
TEST(balance, two_windows_may_be_as_wide_as_can_be) {
  constexpr std::int64_t kWide = kUnlimited - 1;
  const WholeSizes sizes{.queries = 8192, .keys = 8192};
  EXPECT_EQ(balanced_layouts(sizes, {.window = {.left = kWide, .right = kWide}}, 4).keys,
            balanced_layouts(sizes, {.window = {.left = 8192, .right = 8192}}, 4).keys);
}

// ---- What plan() says ---------------------------------------------------------------------------

TEST(plan, automatic_takes_heads_unless_they_are_uneven_or_move_much_more) {
  const auto chosen = [](const WholeSizes& sizes, const AttentionOptions& options, int ranks,
                         Bits bits = Bits::one_process) {
    return plan(balanced_layouts(sizes, options, ranks), sizes, options, {.bits = bits});
  };
  const auto name = [](const DistributedPlan& plan) {
    return std::string(plan.scheme == Scheme::heads ? "heads" : "gather") +
           (plan.backward_scheme == Scheme::heads ? " heads" : " gather");
  };
  WholeSizes sizes{.queries = 1, .keys = 1 << 20, .heads = 8, .key_heads = 2, .d = 128, .dv = 128};
  {  // A token against a long cache: 17 MB of states, where heads move half of the cache.
    const DistributedPlan decode = chosen(sizes, {}, 2);
    EXPECT_EQ(decode.scheme, Scheme::gather);
    EXPECT_LT(sum_sent(decode.forward), 20'000'000);
    EXPECT_EQ(
        sum_sent(
            plan(balanced_layouts(sizes, {}, 2), sizes, {}, {.scheme = Scheme::heads}).forward),
        (std::int64_t{1} << 30) + 4096);  // of the query and out
  }
  sizes.queries = sizes.keys = 1 << 16;
  sizes.heads = sizes.key_heads = 16;
  const AttentionOptions causal{.causal = true}, window{.causal = true, .window = {.left = 1000}};
  EXPECT_EQ(name(chosen(sizes, causal, 16)), "heads heads");
  EXPECT_EQ(name(chosen(sizes, causal, 5)), "gather gather");   // 16 heads on 5 ranks
  EXPECT_EQ(name(chosen(sizes, window, 16)), "gather gather");  // neighbours' keys alone
  sizes.key_heads = 2;
  EXPECT_EQ(name(chosen(sizes, causal, 2)), "gather heads");  // queries of 8 heads for each of keys
  EXPECT_EQ(name(chosen(sizes, causal, 2, Bits::fast)), "gather gather");
  EXPECT_EQ(chosen(sizes, causal, 2).describe().substr(0, 84),
            "attention over 2 ranks, keys gathered, whole heads backward, the bits of one process");
}

// Bytes that a Context holds of its allocator.
struct Held {
  std::atomic<std::int64_t> now{0}, most{0};
  Allocator allocator() {
    return {.allocate = [this](std::size_t bytes, std::size_t alignment) -> void* {
              const std::int64_t all = now += static_cast<std::int64_t>(bytes);
              if (all > most) most = all;
              return ::operator new (bytes, std::align_val_t{alignment}, std::nothrow);
            },
            .deallocate =
                [this](void* memory, std::size_t bytes) {
                  now -= static_cast<std::int64_t>(bytes);
                  ::operator delete (memory, std::align_val_t{64});
                }};
  }
};

// Beside what the plan says there are workspaces, at most the undivided call's.
TEST(plan, memory_is_what_is_allocated) {
  const WholeSizes sizes{
      .queries = 1024, .keys = 1024, .heads = 4, .key_heads = 2, .d = 24, .dv = 24};
  const AttentionOptions options{.causal = true};
  const Layouts layouts = balanced_layouts(sizes, options, 2);
  constexpr const char* kKernels = "forward:reference.forward,backward:reference.backward";
  Context undivided({.threads = 1, .kernels = kKernels});
  const Layout one = Layout::serpentine({1024}, 1);
  RankTensors all(sizes, {one, one}, 0);
  const double workspaces[] = {
      static_cast<double>(Plan::attention(all.q, all.k, all.k, all.out, options, {}, {}, undivided)
                              .workspace_bytes()),
      static_cast<double>(Plan::attention_backward(
                              {.q = all.q,
                               .k = all.k,
                               .v = all.k,
                               .out = all.out,
                               .lse = all.lse,
                               .dout = all.q,
                               .dlse = {}},
                              options, {.dq = all.dq, .dk = all.dk, .dv = all.dv}, {}, undivided)
                              .workspace_bytes())};
  for (const DistributedOptions& how :
       {DistributedOptions{.scheme = Scheme::gather},
        DistributedOptions{.scheme = Scheme::gather, .bits = Bits::fast},
        DistributedOptions{.scheme = Scheme::heads}})
    for (const bool backward : {false, true}) {
      const DistributedPlan cost = plan(layouts, sizes, options, how);
      Held held[2];
      const ThreadGroup group(2);
      const auto thrown = group.run([&](Group& mine) {
        const auto rank = static_cast<std::size_t>(mine.rank());
        Context context({.threads = 1, .allocator = held[rank].allocator(), .kernels = kKernels});
        RankTensors(sizes, layouts, mine.rank())
            .call(backward, mine, layouts, options, how, context);
      });
      for (const auto& error : thrown) EXPECT_FALSE(error);
      for (const std::size_t r : {0, 1}) {
        const double planned =
            static_cast<double>((backward ? cost.backward : cost.forward)[r].memory);
        EXPECT_GE(static_cast<double>(held[r].most), 0.99 * planned);
        EXPECT_LE(static_cast<double>(held[r].most) - workspaces[backward], 1.01 * planned + 4096);
      }
    }
}

// What shares of dk and dv are joined in is the Context's, and there before the first transfer,
// which is the record: where it is not to be had, all ranks hear of it.
TEST(plan, what_fast_joins_in_is_taken_before_anything_is_sent) {
  constexpr int kRanks = 3;
  const WholeSizes sizes{
      .queries = 1000, .keys = 1000, .heads = 2, .key_heads = 1, .d = 40, .dv = 40};
  const Layouts layouts = balanced_layouts(sizes, {.causal = true}, kRanks);
  const auto is_it = [&](int rank, std::int64_t bytes) {
    const std::int64_t wanted = layouts.keys.owned(rank) * sizes.d * 8;
    return bytes >= wanted && bytes < wanted + 256;
  };
  struct Rank {
    int taken = 0, taken_before = -1;
  };
  std::array<Rank, kRanks> ranks;
  const auto of = [&](int rank) -> Rank& { return ranks[static_cast<std::size_t>(rank)]; };
  const ThreadGroup group(kRanks, [&](int rank, std::int64_t transfer) {
    if (transfer == 0) of(rank).taken_before = of(rank).taken;
  });
  const auto thrown = group.run([&](Group& mine) {
    Held held;
    Allocator allocator = held.allocator();
    const auto take = allocator.allocate;
    allocator.allocate = [&, take](std::size_t bytes, std::size_t alignment) {
      of(mine.rank()).taken += is_it(mine.rank(), static_cast<std::int64_t>(bytes));
      return take(bytes, alignment);
    };
    Context context({.threads = 1, .allocator = allocator});
    RankTensors(sizes, layouts, mine.rank())
        .call(true, mine, layouts, {.causal = true}, {.scheme = Scheme::gather, .bits = Bits::fast},
              context);
  });
  for (const auto& error : thrown) EXPECT_FALSE(error);
  for (const Rank& rank : ranks) {
    EXPECT_EQ(rank.taken, 1);
    EXPECT_EQ(rank.taken_before, 1);
  }
}

TEST(plan, says_what_it_costs) {
  const WholeSizes sizes{
      .queries = 8192, .keys = 8192, .heads = 8, .key_heads = 2, .d = 64, .dv = 64};
  const AttentionOptions options{.causal = true};
  const Layouts layouts = balanced_layouts(sizes, options, 4);
  EXPECT_EQ(plan(layouts, sizes, options).scheme, Scheme::gather);  // two key heads for four ranks
  EXPECT_EQ(plan(balanced_layouts(sizes, options, 2), sizes, options).backward_scheme,
            Scheme::heads);
  const std::string said = plan(layouts, sizes, options).describe();
  EXPECT_NE(said.find("attention over 4 ranks, keys gathered, the bits of one process"),
            std::string::npos)
      << said;
  EXPECT_NE(said.find("forward: "), std::string::npos);
  EXPECT_NE(said.find("work max/mean 1.0"), std::string::npos);
}

}  // namespace
}  // namespace attend::test
