// The undivided problem, and parts of it. What the caller gave becomes two Requests, checked as
// those of any call are: that of the whole, whose tensors have no rows here but whose options are
// real, and that of the rank's own rows. A Piece of it is then a Problem and a Call of its own,
// which kernels run as they run any other: they never know that there are ranks.
#pragma once

#include "api/check.h"
#include "core/sequence.h"

#include <attend/distributed.h>

#include <vector>

namespace attend::distributed {

struct WholeProblem {
  Problem problem;  // of the whole
  Call call;        // its options; q, k and v have no rows
  UndividedSizes sizes;
  std::vector<Sequence> sequences;  // of the batch, or packed
  std::vector<std::int64_t> q_starts{
      0};  // of each sequence among the rows of all, and their number
  std::vector<std::int64_t> k_starts{0};
  const Layouts* layouts = nullptr;

  std::int64_t group() const noexcept { return problem.group(); }
  std::int64_t batch() const noexcept { return static_cast<std::int64_t>(sequences.size()); }
  bool packed() const noexcept { return problem.packed_queries; }
  // Which sequence of the layouts is b.
  std::int64_t layout_sequence(std::int64_t b) const noexcept { return packed() ? b : 0; }
  // Where b is in a rank's tensors.
  std::int64_t local_batch(std::int64_t b) const noexcept { return packed() ? 0 : b; }
  const std::vector<std::int64_t>& starts(bool queries) const noexcept {
    return queries ? q_starts : k_starts;
  }
  const Layout& layout(bool queries) const noexcept {
    return queries ? layouts->queries : layouts->keys;
  }
};

struct WholeForward : WholeProblem {
  Request<Forward> local;  // the rank's own rows
};
struct WholeBackward : WholeProblem {
  Request<Backward> local;
  BackwardCall gradients;  // dbias, dsinks and dalibi, of the whole
  bool dbias = false, dsinks = false, dalibi = false;
};

// Throw InvalidArgument, with the words of the undivided call where it has them.
WholeForward check_forward(int rank, int ranks, const Layouts& layouts,
                           const ForwardArguments& arguments);
WholeBackward check_backward(int rank, int ranks, const Layouts& layouts,
                             const BackwardArguments& arguments);

// Of sizes alone, and of what the options say about positions. With layouts, which must fit.
WholeProblem whole_of_sizes(const char* function, const WholeSizes& sizes,
                            const AttentionOptions& options, const Layouts* layouts = nullptr);

// Some queries and keys of one sequence, of the heads of one key head.
struct Piece {
  std::int64_t b = 0, head = 0, heads = 0;
  std::int64_t i_begin = 0, i_end = 0, j_begin = 0, j_end = 0;
};

// All queries and keys of a sequence, of the heads of one key head.
Piece piece_of(const WholeProblem& whole, std::int64_t b, std::int64_t kv_head);

// What the Call of a piece points to.
struct PieceMemory {
  std::int64_t key_length = 0;
  std::vector<std::uint8_t> blocks;
};

// The Problem and Call of a piece, but for q, k, v and what is written.
void cut(const WholeProblem& whole, const Piece& piece, Problem& problem, Call& call,
         PieceMemory& memory);

// Of all sequences, heads and queries, but some keys of each sequence. q, k, v and what is written
// are left as they were, and so are lengths and offsets, which are each sequence's own.
void cut_keys(const WholeProblem& whole, std::int64_t begin, std::int64_t end, Problem& problem,
              Call& call, PieceMemory& memory);

// Of keys and values, which may have types of their own.
inline DType type_of_k(const Problem& p) noexcept { return p.own_k_type ? p.k_type : p.type; }
inline DType type_of_v(const Problem& p) noexcept { return p.own_v_type ? p.v_type : p.type; }

// t, from row `i` of head h of b on.
inline Strided moved_to(Strided t, std::int64_t b, std::int64_t h, std::int64_t i,
                        std::int64_t x = 0) noexcept {
  if (t.given) t.data += t.offset(b, h, i, x) * size_of(t.type);
  return t;
}

}  // namespace attend::distributed
