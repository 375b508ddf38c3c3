// Do ranks under mpirun get the bits of one process, and are mistakes of one rank told to all? Run
// by mpirun with any number of ranks. The whole table is divided among threads: distributed_test.
#include "cases/cases.h"
#include "cases/instance.h"
#include "ranks.h"
#include "support/property_compare.h"

namespace attend {
namespace {

using distributed::Bits;
using distributed::Layout;
using distributed::Layouts;
using distributed::Scheme;

constexpr std::int64_t kPiece = 1 << 20;

Tensor like(const ConstTensorView& view) {
  return view ? Tensor(view.shape(), view.dtype()) : Tensor();
}

// A rank's part of a case that one process has computed: the same by all ranks, compared.
class Divided {
 public:
  Divided(distributed::Group& group, const cases::Instance& whole, const Layouts& layouts,
          const distributed::DistributedOptions& how)
      : group_(group), whole_(whole), layouts_(layouts), how_(how), options_(whole.options),
        k_scales_(keys(whole.options.k_scales)), v_scales_(keys(whole.options.v_scales)),
        q_(queries(whole.q)), k_(keys(whole.k)), v_(keys(whole.v)) {
    if (k_scales_) options_.k_scales = k_scales_;
    if (v_scales_) options_.v_scales = v_scales_;
  }

  void forward() {
    out_ = like(queries(whole_.out));
    lse_ = like(queries(whole_.lse));
    distributed::attention(group_, layouts_, q_, k_, v_, out_, options_, {.lse = lse_}, how_);
    expect("out", out_, queries(whole_.out));
    expect("lse", lse_, queries(whole_.lse));
  }
  void backward() {
    const auto& wanted = whole_.gradients;
    const Tensor dout = queries(whole_.dout), dlse = queries(whole_.dlse);
    Tensor dq = like(queries(wanted.dq)), dk = like(keys(wanted.dk)), dv = like(keys(wanted.dv));
    Tensor dbias = like(wanted.dbias), dsinks = like(wanted.dsinks), dalibi = like(wanted.dalibi);
    distributed::attention_backward(
        group_, layouts_,
        {.q = q_, .k = k_, .v = v_, .out = out_, .lse = lse_, .dout = dout, .dlse = dlse}, options_,
        {.dq = dq, .dk = dk, .dv = dv, .dbias = dbias, .dsinks = dsinks, .dalibi = dalibi}, how_);
    expect("dq", dq, queries(wanted.dq));
    expect("dbias", dbias, wanted.dbias);
    expect("dsinks", dsinks, wanted.dsinks);
    expect("dalibi", dalibi, wanted.dalibi);
    if (how_.bits != Bits::one_process) return;
    expect("dk", dk, keys(wanted.dk));
    expect("dv", dv, keys(wanted.dv));
  }

 private:
  Tensor rows(const Layout& layout, const ConstTensorView& view) const {
    return view ? take_rows(layout, group_.rank(), view) : Tensor();
  }
  Tensor queries(const ConstTensorView& view) const { return rows(layouts_.queries, view); }
  Tensor keys(const ConstTensorView& view) const { return rows(layouts_.keys, view); }
  void expect(const char* what, const ConstTensorView& found, const ConstTensorView& wanted) const {
    if (!wanted) return;
    EXPECT_TRUE(test::same_bits(wanted, found))
        << what << " of rank " << group_.rank() << ": " << cases::name(whole_.problem);
  }

  distributed::Group& group_;
  const cases::Instance& whole_;
  const Layouts& layouts_;
  const distributed::DistributedOptions how_;
  AttentionOptions options_;
  Tensor k_scales_, v_scales_, q_, k_, v_, out_, lse_;
};

std::vector<std::int64_t> lengths_of(const ConstTensorView& starts, std::int64_t length) {
  if (!starts) return {length};
  std::vector<std::int64_t> lengths;
  for (std::int64_t n = 0; n + 1 < starts.size(0); ++n)
    lengths.push_back(
        static_cast<std::int64_t>(test::value_at(starts, {n + 1}) - test::value_at(starts, {n})));
  return lengths;
}

// In turn each scheme and each way of the bits.
void divide(distributed::Group& group, const cases::Case& problem, std::size_t n) {
  cases::Instance whole = cases::make(problem);
  whole.outputs.visited_blocks = nullptr;
  attention(whole.q, whole.k, whole.v, whole.out, whole.options, {.lse = whole.lse});
  attention_backward(whole.backward_inputs(), whole.options, whole.gradients);
  const ConstTensorView& starts = whole.options.cu_seqlens_q;
  const ConstTensorView& key_starts =
      whole.options.cu_seqlens_k ? whole.options.cu_seqlens_k : starts;
  const std::int64_t granule = n % 3 == 0 ? distributed::kGranule : 16;
  const Layouts layouts{
      Layout::serpentine(lengths_of(starts, whole.q.size(2)), group.size(), granule),
      Layout::serpentine(lengths_of(key_starts, whole.k.size(2)), group.size(), granule)};
  Divided mine(group, whole, layouts,
               {.scheme = n % 2 == 0 ? Scheme::gather : Scheme::heads,
                .bits = n % 8 == 2 ? Bits::fast : Bits::one_process,
                .timeout = kLong});
  mine.forward();
  mine.backward();
}

TEST(Calls, ranks_give_the_bits_of_one_process) {
  mpi::Group group(MPI_COMM_WORLD, {.piece = kPiece});
  const std::vector<cases::Case> all = cases::table();
  for (std::size_t n = 0; n < all.size(); n += 9) {
    cases::Case problem = all[n];
    if (cases::is_paged(problem)) continue;
    problem.weights = problem.scores = false;
    problem.type = n % 2 == 0 ? DType::f32 : DType::bf16;
    divide(group, problem, n / 9);
    if (testing::Test::HasFailure()) return;  // the next ones would only say so again
  }
}

// Messages of several pieces.
TEST(Calls, ranks_give_the_bits_of_one_process_for_a_long_sequence) {
  mpi::Group group(MPI_COMM_WORLD, {.piece = 1 << 16});
  const cases::Case problem{.heads = 4,
                            .kv_heads = 2,
                            .q_length = 2500,
                            .k_length = 2500,
                            .d = 64,
                            .dv = 64,
                            .causal = true};
  divide(group, problem, 0);
  divide(group, problem, 1);
}

// All ranks' text of an error, on rank 0.
std::vector<std::string> gathered(const std::string& text) {
  int rank = 0, size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  std::array<char, 2000> mine{};
  text.copy(mine.data(), mine.size() - 1);
  std::vector<char> all(mine.size() * static_cast<std::size_t>(size));
  MPI_Gather(mine.data(), static_cast<int>(mine.size()), MPI_CHAR, all.data(),
             static_cast<int>(mine.size()), MPI_CHAR, 0, MPI_COMM_WORLD);
  std::vector<std::string> texts;
  for (int r = 0; rank == 0 && r < size; ++r)
    texts.emplace_back(all.data() + static_cast<std::size_t>(r) * mine.size());
  return texts;
}

struct Sizes {
  std::int64_t heads = 2, d = 8, rows = 0;  // rows: more than the layout says
};

std::string error_of(distributed::Group& group, const Sizes& sizes, const AttentionOptions& options,
                     bool backward) {
  const auto layout = Layout::serpentine({700}, group.size());
  const std::int64_t rows = layout.owned(group.rank()) + sizes.rows;
  const Tensor x = test::gaussian({1, sizes.heads, rows, sizes.d}, DType::f32, 1);
  const Tensor lse = test::gaussian({1, sizes.heads, rows}, DType::f32, 2);
  Tensor out = like(x), dk = like(x), dv = like(x);
  try {
    if (backward)
      distributed::attention_backward(
          group, {layout, layout},
          {.q = x, .k = x, .v = x, .out = x, .lse = lse, .dout = x, .dlse = {}}, options,
          {.dq = out, .dk = dk, .dv = dv}, {.timeout = kLong});
    else
      distributed::attention(group, {layout, layout}, x, x, x, out, options, {},
                             {.timeout = kLong});
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return {};
}

TEST(Calls, a_mistake_of_one_rank_is_the_same_error_on_all) {
  mpi::Group group(MPI_COMM_WORLD);
  if (group.size() == 1) return;
  const bool wrong_here = group.rank() == 1;
  const Sizes right, more_rows{.rows = 1}, more_heads{.heads = 4};
  struct Mistake {
    Sizes sizes;
    AttentionOptions options;
    const char* named;
  };
  const Mistake mistakes[] = {{more_rows, {.causal = true}, "rank 1"},
                              {more_heads, {.causal = true}, "heads"},
                              {right, {.causal = false}, "causal"},
                              {right, {.scale = 0.5, .causal = true}, "scale"}};
  for (const bool backward : {false, true})
    for (const auto& [sizes, options, named] : mistakes) {
      const std::string error = wrong_here ? error_of(group, sizes, options, backward)
                                           : error_of(group, right, {.causal = true}, backward);
      for (const std::string& text : gathered(error)) {
        EXPECT_EQ(text, error);
        EXPECT_TRUE(text.find(named) != std::string::npos &&
                    text.find("rank 1") != std::string::npos)
            << text;
      }
      EXPECT_EQ(error_of(group, right, {.causal = true}, backward), "") << "the Group goes on";
    }
}

}  // namespace
}  // namespace attend

int main(int argc, char** argv) { return attend::run_ranks(argc, argv); }
