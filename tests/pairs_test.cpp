// Do any two options disturb each other? Every pair of option values, forward and backward, in
// every type, with every kernel, against the oracle.
#include "support/covering_array.h"
#include "support/examination.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <map>

namespace attend::test {
namespace {

using cases::Case;

struct Level {
  std::string name;
  void (*apply)(Case&);
};
struct Factor {
  std::string name;
  std::vector<Level> levels;
};

void set_heads(Case& c, std::int64_t heads, std::int64_t kv_heads) {
  c.heads = heads;
  c.kv_heads = kv_heads;
}
void set_lengths(Case& c, std::int64_t queries, std::int64_t keys) {
  c.q_length = queries;
  c.k_length = keys;
}
void set_sizes(Case& c, std::int64_t d, std::int64_t dv) {
  c.d = d;
  c.dv = dv;
}
void set_mask(Case& c, cases::Mask mask, DType type) {
  c.mask = mask;
  c.mask_type = type;
}
void set_bias(Case& c, cases::Bias bias, bool f32) {
  c.bias = bias;
  c.bias_f32 = f32;
}
void set_blocks(Case& c, cases::BlockMask blocks, std::int64_t block_q, std::int64_t block_k) {
  c.blocks = blocks;
  c.block_q = block_q;
  c.block_k = block_k;
}
void set_offset(Case& c, cases::Offset kind, std::int64_t offset) {
  c.query_offset = kind;
  c.offset = offset;
}
void set_key_lengths(Case& c, cases::Lengths lengths, DType type) {
  c.key_lengths = lengths;
  c.index_type = type;
}
void set_scores(Case& c, ScoreStage stage) {
  c.scores = true;
  c.stage = stage;
}
void set_softcap(Case& c, double softcap, bool before) {
  c.softcap = softcap;
  c.bias_before_softcap = before;
}
void set_dropout(Case& c, double p, bool origin) {
  c.dropout = p;
  c.dropout_origin = origin;
}

// Every option, and what else a kernel may treat in a special way. The first level is the default.
const std::vector<Factor>& factors() {
  using namespace cases;
  static const std::vector<Factor> all = {
      {"addressing",
       {{"dense", [](Case&) {}},
        {"packed", [](Case& c) { c.addressing = Addressing::packed; }},
        {"packed_self", [](Case& c) { c.addressing = Addressing::packed_self; }},
        {"paged", [](Case& c) { c.addressing = Addressing::paged; }},
        {"paged_shared", [](Case& c) { c.addressing = Addressing::paged_shared; }},
        {"packed_paged", [](Case& c) { c.addressing = Addressing::packed_paged; }}}},
      {"layout",
       {{"contiguous", [](Case&) {}},
        {"bthd", [](Case& c) { c.layout = Layout::bthd; }},
        {"interleaved", [](Case& c) { c.layout = Layout::interleaved; }},
        {"reversed", [](Case& c) { c.layout = Layout::reversed; }},
        {"broadcast_batch", [](Case& c) { c.layout = Layout::broadcast_batch; }},
        {"broadcast_heads", [](Case& c) { c.layout = Layout::broadcast_heads; }},
        {"padded", [](Case& c) { c.layout = Layout::padded; }},
        {"gapped", [](Case& c) { c.layout = Layout::gapped; }},
        {"transposed", [](Case& c) { c.layout = Layout::transposed; }}}},
      {"heads",
       {{"1:1", [](Case& c) { set_heads(c, 1, 1); }},
        {"3:3", [](Case& c) { set_heads(c, 3, 3); }},
        {"4:2", [](Case& c) { set_heads(c, 4, 2); }},
        {"5:1", [](Case& c) { set_heads(c, 5, 1); }}}},
      {"lengths",
       {{"33, 33", [](Case& c) { set_lengths(c, 33, 33); }},
        {"1, 65", [](Case& c) { set_lengths(c, 1, 65); }},
        {"18, 37", [](Case& c) { set_lengths(c, 18, 37); }},
        {"20, 13", [](Case& c) { set_lengths(c, 20, 13); }}}},
      {"d, dv",
       {{"8, 8", [](Case& c) { set_sizes(c, 8, 8); }},
        {"13, 7", [](Case& c) { set_sizes(c, 13, 7); }},
        {"5, 16", [](Case& c) { set_sizes(c, 5, 16); }}}},
      {"values",
       {{"gaussian", [](Case&) {}},
        {"outliers", [](Case& c) { c.values = Values::outliers; }},
        {"cold", [](Case& c) { c.values = Values::cold; }}}},
      {"key_lengths",
       {{"none", [](Case&) {}},
        {"full", [](Case& c) { set_key_lengths(c, Lengths::full, DType::i32); }},
        {"mixed", [](Case& c) { set_key_lengths(c, Lengths::mixed, DType::i32); }},
        {"mixed i64", [](Case& c) { set_key_lengths(c, Lengths::mixed, DType::i64); }}}},
      {"causal", {{"no", [](Case&) {}}, {"yes", [](Case& c) { c.causal = true; }}}},
      {"window left",
       {{"unlimited", [](Case&) {}},
        {"0", [](Case& c) { c.window_left = 0; }},
        {"7", [](Case& c) { c.window_left = 7; }}}},
      {"window right",
       {{"unlimited", [](Case&) {}},
        {"0", [](Case& c) { c.window_right = 0; }},
        {"3", [](Case& c) { c.window_right = 3; }}}},
      {"query_offset",
       {{"default", [](Case&) {}},
        {"5", [](Case& c) { set_offset(c, Offset::one, 5); }},
        {"-4", [](Case& c) { set_offset(c, Offset::one, -4); }},
        {"each", [](Case& c) { set_offset(c, Offset::each, 1); }}}},
      {"key_offset", {{"none", [](Case&) {}}, {"300", [](Case& c) { c.key_offset = 300; }}}},
      {"mask",
       {{"none", [](Case&) {}},
        {"full bool", [](Case& c) { set_mask(c, Mask::full, DType::boolean); }},
        {"per_pair u8", [](Case& c) { set_mask(c, Mask::per_pair, DType::u8); }},
        {"per_key i64", [](Case& c) { set_mask(c, Mask::per_key, DType::i64); }},
        {"rows i8", [](Case& c) { set_mask(c, Mask::rows, DType::i8); }},
        {"short_full i32", [](Case& c) { set_mask(c, Mask::short_full, DType::i32); }},
        {"query_key bool", [](Case& c) { set_mask(c, Mask::query_key, DType::boolean); }}}},
      {"bias",
       {{"none", [](Case&) {}},
        {"full", [](Case& c) { set_bias(c, Bias::full, false); }},
        {"per_pair f32", [](Case& c) { set_bias(c, Bias::per_pair, true); }},
        {"per_head", [](Case& c) { set_bias(c, Bias::per_head, false); }},
        {"key f32", [](Case& c) { set_bias(c, Bias::key, true); }},
        {"infinite", [](Case& c) { set_bias(c, Bias::infinite, false); }},
        {"short_full f32", [](Case& c) { set_bias(c, Bias::short_full, true); }}}},
      {"blocks",
       {{"none", [](Case&) {}},
        {"full 7 x 5", [](Case& c) { set_blocks(c, BlockMask::full, 7, 5); }},
        {"shared 16 x 8", [](Case& c) { set_blocks(c, BlockMask::shared, 16, 8); }},
        {"rows 4 x 32", [](Case& c) { set_blocks(c, BlockMask::rows, 4, 32); }}}},
      {"scale", {{"default", [](Case&) {}}, {"0.7", [](Case& c) { c.scale = 0.7; }}}},
      {"softcap",
       {{"none", [](Case&) {}},
        {"2", [](Case& c) { set_softcap(c, 2, false); }},
        {"2, bias before", [](Case& c) { set_softcap(c, 2, true); }},
        {"none, bias before", [](Case& c) { set_softcap(c, 0, true); }}}},
      {"alibi", {{"no", [](Case&) {}}, {"yes", [](Case& c) { c.alibi = true; }}}},
      {"sinks", {{"no", [](Case&) {}}, {"yes", [](Case& c) { c.sinks = true; }}}},
      {"dropout",
       {{"none", [](Case&) {}},
        {"0.25", [](Case& c) { set_dropout(c, 0.25, false); }},
        {"0.5 of a part", [](Case& c) { set_dropout(c, 0.5, true); }}}},
      {"lse",
       {{"narrow", [](Case&) {}},
        {"f64", [](Case& c) { c.lse_f64 = true; }},
        {"not asked", [](Case& c) { c.lse = false; }}}},
      {"weights", {{"no", [](Case&) {}}, {"yes", [](Case& c) { c.weights = true; }}}},
      {"scores",
       {{"no", [](Case&) {}},
        {"raw", [](Case& c) { set_scores(c, ScoreStage::raw); }},
        {"softcapped", [](Case& c) { set_scores(c, ScoreStage::softcapped); }},
        {"masked", [](Case& c) { set_scores(c, ScoreStage::masked); }}}},
      {"width",
       {{"same", [](Case&) {}},
        {"f32", [](Case& c) { c.width = Width::f32; }},
        {"f64", [](Case& c) { c.width = Width::f64; }}}},
      {"dlse", {{"no", [](Case&) {}}, {"yes", [](Case& c) { c.dlse = true; }}}},
      {"gradients",
       {{"all", [](Case&) {}},
        {"dq", [](Case& c) { c.gradients = Gradients::dq; }},
        {"dk dv", [](Case& c) { c.gradients = Gradients::dkdv; }},
        {"dv", [](Case& c) { c.gradients = Gradients::dv; }},
        {"extras", [](Case& c) { c.gradients = Gradients::extras; }}}},
  };
  return all;
}

// Pairs that no call can hold.
struct Infeasible {
  const char *factor, *level, *other_factor, *other_level, *reason;
};
constexpr Infeasible kInfeasible[] = {
    {"addressing", "paged", "key_lengths", "none", "block_table needs key_lengths"},
    {"addressing", "paged_shared", "key_lengths", "none", "block_table needs key_lengths"},
    {"addressing", "packed_paged", "key_lengths", "none", "block_table needs key_lengths"},
    {"addressing", "packed_self", "lengths", "1, 65", "cu_seqlens_k is cu_seqlens_q"},
    {"addressing", "packed_self", "lengths", "18, 37", "cu_seqlens_k is cu_seqlens_q"},
    {"addressing", "packed_self", "lengths", "20, 13", "cu_seqlens_k is cu_seqlens_q"},
};

// The number of a factor, and of a factor's level.
int factor_of(const std::string& name) {
  for (std::size_t f = 0; f < factors().size(); ++f)
    if (factors()[f].name == name) return static_cast<int>(f);
  throw std::invalid_argument("no factor " + name);
}
int level_of(const std::string& factor, const std::string& name) {
  const auto& levels = factors()[static_cast<std::size_t>(factor_of(factor))].levels;
  for (std::size_t level = 0; level < levels.size(); ++level)
    if (levels[level].name == name) return static_cast<int>(level);
  throw std::invalid_argument("no level " + name + " of " + factor);
}

bool holds(const CoveringRow& row, const std::string& factor, const std::string& level) {
  return row[static_cast<std::size_t>(factor_of(factor))] == level_of(factor, level);
}

bool allowed(const CoveringRow& row) {
  for (const Infeasible& pair : kInfeasible)
    if (holds(row, pair.factor, pair.level) && holds(row, pair.other_factor, pair.other_level))
      return false;
  // The gradients of what is not there cannot be asked for.
  return !(holds(row, "gradients", "extras") && holds(row, "bias", "none") &&
           holds(row, "alibi", "no") && holds(row, "sinks", "no"));
}

// Several arrays one after the other: every pair occurs in each, in other company.
constexpr std::uint64_t kArrays = 3;

const std::vector<CoveringRow>& rows() {
  static const std::vector<CoveringRow> all = [] {
    std::vector<int> levels;
    for (const Factor& factor : factors()) levels.push_back(static_cast<int>(factor.levels.size()));
    std::vector<CoveringRow> arrays;
    for (std::uint64_t seed = 0; seed < kArrays; ++seed)
      for (const CoveringRow& row : covering_array(levels, allowed, seed)) arrays.push_back(row);
    return arrays;
  }();
  return all;
}

Case case_of(std::size_t n) {
  Case problem{.batch = 4, .page_size = 8};
  for (std::size_t f = 0; f < factors().size(); ++f)
    factors()[f].levels[static_cast<std::size_t>(rows()[n][f])].apply(problem);
  problem.seed = 1000 + n;
  return problem;
}

TEST(pairs, every_feasible_pair_is_covered) {
  std::map<std::array<std::size_t, 4>, std::uint64_t> covered;
  for (const CoveringRow& row : rows())
    for (std::size_t f = 0; f < row.size(); ++f)
      for (std::size_t g = f + 1; g < row.size(); ++g)
        ++covered[{f, static_cast<std::size_t>(row[f]), g, static_cast<std::size_t>(row[g])}];
  std::size_t pairs = 0, infeasible = 0;
  for (std::size_t f = 0; f < factors().size(); ++f)
    for (std::size_t g = f + 1; g < factors().size(); ++g)
      for (std::size_t a = 0; a < factors()[f].levels.size(); ++a)
        for (std::size_t b = 0; b < factors()[g].levels.size(); ++b) {
          CoveringRow pair(factors().size(), -1);
          pair[f] = static_cast<int>(a);
          pair[g] = static_cast<int>(b);
          ++pairs;
          const bool feasible = allowed(pair);
          infeasible += !feasible;
          EXPECT_EQ((covered[{f, a, g, b}]) >= kArrays, feasible)
              << factors()[f].name << " = " << factors()[f].levels[a].name << ", "
              << factors()[g].name << " = " << factors()[g].levels[b].name;
        }
  EXPECT_EQ(infeasible, std::size(kInfeasible));
  std::printf("%zu options, %zu pairs of values (%zu infeasible) in %zu rows\n", factors().size(),
              pairs - infeasible, infeasible, rows().size());
}

// Options that hide keys meet in most rows; between them something must be left to see.
TEST(pairs, many_queries_see_a_key) {
  std::int64_t queries = 0, seeing = 0;
  for (std::size_t n = 0; n < rows().size(); ++n) {
    const cases::Instance in = cases::make(case_of(n));
    const Reader reader({in.q, in.k, in.v, in.dout, in.dlse, in.options});
    for (std::int64_t b = 0; b < reader.extents().batch; ++b) {
      const SequenceRows of_b = rows_of(reader.arguments(), b);
      for (std::int64_t i = 0; i < static_cast<std::int64_t>(of_b.queries.size()); ++i) {
        bool sees = false;
        for (std::int64_t j = 0; j < of_b.key_length; ++j)
          sees = sees || reader.pair_visible(of_b, b, 0, i, j);
        ++queries;
        seeing += sees;
      }
    }
  }
  std::printf("%lld of %lld queries see a key\n", static_cast<long long>(seeing),
              static_cast<long long>(queries));
  EXPECT_GE(5 * seeing, 2 * queries);
}

// The rows in parts, so that a run can be divided among processes.
constexpr int kParts = 4;

class Pairs : public testing::TestWithParam<std::tuple<DType, int>> {};

TEST_P(Pairs, every_kernel_gives_the_truth) {
  const auto& [type, part] = GetParam();
  std::int64_t runs = 0, declined = 0;
  for (std::size_t n = static_cast<std::size_t>(part); n < rows().size(); n += kParts) {
    Case problem = case_of(n);
    problem.type = type;
    Examination examination(problem);
    const auto judge = [&](const Outcome& outcome) {
      ++(outcome.declined ? declined : runs);
      if (!outcome.declined && !outcome.message.empty()) ADD_FAILURE() << outcome.message;
    };
    for (const std::string& kernel : kernels_for("forward")) judge(examination.forward(kernel));
    for (const std::string& kernel : kernels_for("backward")) judge(examination.backward(kernel));
  }
  std::printf("%s, part %d: %lld runs, %lld declined\n", std::string(name_of(type)).c_str(), part,
              static_cast<long long>(runs), static_cast<long long>(declined));
}

INSTANTIATE_TEST_SUITE_P(all, Pairs,
                         testing::Combine(testing::ValuesIn(cases::kTypes),
                                          testing::Range(0, kParts)),
                         [](const auto& test) {
                           return std::string(name_of(std::get<0>(test.param))) + "_" +
                                  std::to_string(std::get<1>(test.param));
                         });

}  // namespace
}  // namespace attend::test
