// Attention over the processes of an MPI job, each of which holds some of the tokens.
//
//   mpirun -n 3 distributed
//
// The result has the bits that one process alone computes, whatever the number of processes.
#include <attend/attend.h>
#include <attend/mpi.h>

#include <cmath>
#include <cstdio>
#include <cstring>

namespace {

constexpr std::int64_t kTokens = 3000, kHeads = 4, kKeyHeads = 2, kDim = 32;

// As a program would load them: element c of head h at any token.
float element(std::int64_t h, std::int64_t token, std::int64_t c, int which) {
  return static_cast<float>(std::sin(0.37 * static_cast<double>(token * (which + 1) + 5 * h + c)));
}

// The rows of one rank, in the order in which its layout has them.
attend::Tensor rows_of(const attend::distributed::Layout& layout, int rank, std::int64_t heads,
                       int which) {
  attend::Tensor tensor({1, heads, layout.owned(rank), kDim});
  float* at = tensor.data<float>();
  for (std::int64_t h = 0; h < heads; ++h)
    for (const auto& run : layout.runs(rank))
      for (std::int64_t token = run.begin; token < run.end; ++token)
        for (std::int64_t c = 0; c < kDim; ++c) *at++ = element(h, token, c, which);
  return tensor;
}

int run() {
  using namespace attend;
  mpi::Group group(MPI_COMM_WORLD);
  const int rank = group.rank();
  try {
    const AttentionOptions options{.causal = true, .window = {.left = 1000}};
    const distributed::WholeSizes whole{.queries = kTokens,
                                        .keys = kTokens,
                                        .heads = kHeads,
                                        .key_heads = kKeyHeads,
                                        .d = kDim,
                                        .dv = kDim};
    const auto layouts = distributed::balanced_layouts(whole, options, group.size());
    if (rank == 0)
      std::printf("%s\n", distributed::plan(layouts, whole, options).describe().c_str());

    const Tensor q = rows_of(layouts.queries, rank, kHeads, 0);
    const Tensor k = rows_of(layouts.keys, rank, kKeyHeads, 1);
    const Tensor v = rows_of(layouts.keys, rank, kKeyHeads, 2);
    Tensor out(q.shape()), lse({1, kHeads, layouts.queries.owned(rank)});
    distributed::attention(group, layouts, q, k, v, out, options, {.lse = lse});

    Tensor dq(q.shape()), dk(k.shape()), dv(v.shape());  // of a loss whose gradient at out is out
    distributed::attention_backward(
        group, layouts, {.q = q, .k = k, .v = v, .out = out, .lse = lse, .dout = out, .dlse = {}},
        options, {.dq = dq, .dk = dk, .dv = dv});

    // The same in this process alone.
    const auto all = distributed::Layout::contiguous({kTokens}, 1);
    const Tensor alone = attention(rows_of(all, 0, kHeads, 0), rows_of(all, 0, kKeyHeads, 1),
                                   rows_of(all, 0, kKeyHeads, 2), options);
    const Tensor wanted = distributed::take_rows(layouts.queries, rank, alone);
    const bool same = std::memcmp(wanted.data<float>(), out.data<float>(),
                                  static_cast<std::size_t>(out.count()) * sizeof(float)) == 0;
    std::printf("rank %d of %d: %lld tokens, the bits of one process: %s\n", rank, group.size(),
                static_cast<long long>(layouts.queries.owned(rank)), same ? "yes" : "no");
    return same ? 0 : 1;
  } catch (const distributed::PeerError& error) {
    std::fprintf(stderr, "%s\n", error.what());
    group.abort();  // the others, too: MPI_Finalize would wait for the one that is lost
  }
}

}  // namespace

int main(int argc, char** argv) {
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
  const int status = run();
  MPI_Finalize();
  return status;
}
