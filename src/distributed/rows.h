// Rows of tensors on their way between ranks. A tensor has its rows in two places: in the owners'
// tensors, by the Layout, and in a buffer of whole sequences, by position:
//
//   local   [batch, heads, owned, features]          what the caller gave, of any strides
//   whole   [heads of the buffer, rows of all, features]
//
// A message holds tensor after tensor, head after head, block after block of positions, rows of
// `features` elements side by side. Both sides go through the same blocks, so nothing is said about
// them.
#pragma once

#include "core/mask.h"
#include "distributed/whole.h"

#include <algorithm>
#include <memory>
#include <span>

namespace attend::distributed {

// Some heads of one tensor.
struct MovedTensor {
  Strided local{}, whole{};
  std::int64_t features = 0;
  std::int64_t local_head = 0, heads = 0;  // `whole` begins with the first of them,
  std::int64_t first_row = 0;              // and with this row of those of all sequences
  bool queries = false;                    // its rows are queries, else keys
  std::shared_ptr<const void> memory{};    // that `whole` lies in

  std::int64_t row_bytes() const noexcept { return features * size_of(local.type); }
};

// What each rank needs of each sequence, [rank][b]: the keys that its queries may see by position,
// and the queries that may see the keys whose gradients it computes. Ascending, apart.
struct Needs {
  using Ranges = std::vector<KeyRange>;
  std::vector<std::vector<Ranges>> keys, queries;
  // With `chunks`, keys are also those whose gradients the rank computes.
  static Needs of(const WholeProblem& whole, bool chunks);
};

// A rank's own queries of a sequence, which lie side by side from row `first` of its tensors on.
struct OwnRows {
  std::int64_t first = 0, count = 0;
  std::vector<QueryRun> runs;
};
OwnRows own_rows(const WholeProblem& whole, int rank, std::int64_t b);

// Whether any rank has the queries of a sequence in one run, and whether any has them in several:
// kernels that take the one need not take the other.
struct RunsOfRanks {
  bool one = false, several = false;
};
RunsOfRanks runs_of_ranks(const WholeProblem& whole);

// The Problem and Call of these rows against the keys [j_begin, j_end) of the piece, all runs in
// one call.
void cut_own_rows(const WholeProblem& whole, const OwnRows& own, Piece piece, Problem& problem,
                  Call& call, PieceMemory& memory);

// Which rows: those of one owner, of one sequence or all (-1); of keys, of the chunks of 256 that
// `worker` computes (-1: all); and those that `reader` needs, if needs are given.
struct Blocks {
  int owner = 0;
  std::int64_t b = -1;
  int worker = -1;
  int reader = -1;
  const Needs* needs = nullptr;
};

// Who computes the gradients of the chunk that holds this key.
inline int worker_of(const WholeProblem& whole, std::int64_t b, std::int64_t key) {
  return whole.layouts->keys.owner(whole.layout_sequence(b), key / kGranule * kGranule);
}

// Calls use(b, run) for every block.
template <class Use>
void for_blocks(const WholeProblem& whole, bool queries, const Blocks& blocks, Use use) {
  const auto& runs = whole.layout(queries).runs(blocks.owner);
  const std::int64_t first = blocks.b < 0 ? 0 : blocks.b;
  const std::int64_t last = blocks.b < 0 ? whole.batch() : blocks.b + 1;
  const auto use_run = [&](std::int64_t b, const Layout::Run& run) {
    if (blocks.needs != nullptr) {
      const auto& of = queries ? blocks.needs->queries : blocks.needs->keys;
      for (const KeyRange& range :
           of[static_cast<std::size_t>(blocks.reader)][static_cast<std::size_t>(b)]) {
        const std::int64_t at = std::max(run.begin, range.begin),
                           end = std::min(run.end, range.end);
        if (at < end) use(b, Layout::Run{run.sequence, at, end, run.local + at - run.begin});
      }
      return;
    }
    if (blocks.worker < 0) return use(b, run);
    for (std::int64_t at = run.begin; at < run.end;) {
      const std::int64_t end = std::min(run.end, (at / kGranule + 1) * kGranule);
      if (worker_of(whole, b, at) == blocks.worker)
        use(b, Layout::Run{run.sequence, at, end, run.local + at - run.begin});
      at = end;
    }
  };
  if (whole.packed()) {
    for (const Layout::Run& run : runs)
      if (run.sequence >= first && run.sequence < last) use_run(run.sequence, run);
  } else {
    for (std::int64_t b = first; b < last; ++b)
      for (const Layout::Run& run : runs) use_run(b, run);
  }
}

// How many blocks there are at most, of one tensor and head, between two ranks.
std::size_t most_blocks(const WholeProblem& whole, bool queries, const Needs* needs);

std::int64_t bytes_of(const WholeProblem& whole, const std::vector<MovedTensor>& tensors,
                      const Blocks& blocks);

// So many transfers move each block where it lies; more than the most are slower than a copy of
// what they move.
std::size_t transfers_of(const WholeProblem& whole, const std::vector<MovedTensor>& tensors,
                         const Needs* needs);
inline constexpr std::size_t kMostTransfers = 128;

enum class Place : std::uint8_t { local, whole };
// Where the blocks of head h of a tensor lie, which has its rows side by side there.
std::vector<std::span<std::byte>> memory_of(const WholeProblem& whole, const MovedTensor& tensor,
                                            std::int64_t h, const Blocks& blocks, Place place);
// The rows of an owner, from its own tensor into the buffer.
void place_rows(const WholeProblem& whole, const MovedTensor& tensor, int owner);
// Rows of tensors into a message, and out of one.
void pack(const WholeProblem& whole, const std::vector<MovedTensor>& tensors, const Blocks& blocks,
          Place from, std::byte* message);
void unpack(const WholeProblem& whole, const std::vector<MovedTensor>& tensors,
            const Blocks& blocks, Place to, const std::byte* message);

// A chunk of keys, with the rank that computes it.
struct KeyChunk {
  std::int64_t b = 0, begin = 0, end = 0;
  int worker = 0;
};
// Of all sequences, ascending.
std::vector<KeyChunk> key_chunks(const WholeProblem& whole);

// In the scheme `gather`, forward: whether queries go to the keys, and partial states of chunks
// come back, since queries are few. Each owner of keys has whole chunks then.
bool ships_states(const WholeProblem& whole);
// About the bytes that all ranks send so.
double bytes_of_states(const WholeProblem& whole);

// Rows that a rank does not need are not received, but kernels may look at those beside the ones
// that are: zeros there, so that they find no NaN, which they would have to take care of.
void clear_neighbours(const WholeProblem& whole, const Needs& needs, int rank,
                      const MovedTensor& tensor);

// Memory for rows of all sequences, and a tensor in it: [heads][rows][features].
class WholeRows {
 public:
  WholeRows() = default;
  WholeRows(const Context& context, std::int64_t heads, std::int64_t rows, std::int64_t features,
            DType type);
  const Strided& tensor() const noexcept { return tensor_; }
  const std::shared_ptr<Tensor>& memory() const noexcept { return memory_; }
  void clear(std::int64_t begin, std::int64_t end) noexcept;  // rows of head 0 become zeros

 private:
  std::shared_ptr<Tensor> memory_;
  Strided tensor_;
};

}  // namespace attend::distributed
