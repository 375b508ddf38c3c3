// Attention backward over ranks, in parts:
//
//   rows    dq of a rank's own queries against all keys, and what each row sums (core/row_sums.h):
//           three products. In `fast` also this rank's share of dk and dv: five, and sums of all
//           keys that their owners join in f64, in the order of the ranks
//   keys    dk and dv of chunks of 256 keys over all queries in order, with those sums: four
//           products, and the bits of the undivided call
//   joins   dsinks, dalibi and dbias, which are sums over rows of all ranks: from the rows' sums,
//           which everybody has then
//
// In the scheme `heads` rows and keys are one call for each item, five products.
#pragma once

#include "core/row_sums.h"
#include "distributed/collective.h"

#include <optional>

namespace attend::distributed {

inline constexpr const char* kBackward = "attention_backward";

// What the parts share.
struct BackwardRanks {
  BackwardRanks(WholeBackward given, const DistributedOptions& distributed, Wire& over);

  const WholeBackward whole;
  const Request<Backward>& local;
  Wire& wire;
  const Scheme scheme;
  const Bits bits;
  const bool joins;    // dsinks, dalibi or dbias is wanted
  const bool to_keys;  // dk or dv is

  Tensor sums;  // [local batch, heads, owned, kRowSums], of the rank's own rows
  Strided sums_view;
  std::vector<double> unused_dalibi;  // of pieces: the rows' parts are what counts

  void record_kernels(Record& record);
  // A piece of it: sizes, options and types, nothing written.
  void cut_piece(const Piece& piece, BackwardProblem& problem, BackwardCall& call,
                 PieceMemory& memory);
  void take_types(BackwardProblem& problem) const;
  // And asks it for the rows' sums.
  void ask_for_sums(BackwardProblem& problem, BackwardCall& call, const Strided& to);
  bool wants_sums() const noexcept {
    return joins || (to_keys && scheme == Scheme::gather && bits == Bits::one_process);
  }
  std::int64_t group() const noexcept { return whole.group(); }
  const Sequence& sequence(std::int64_t b) const {
    return whole.sequences[static_cast<std::size_t>(b)];
  }
  // Tensors of queries, of the heads of one key head; of all sequences or, with b, of one.
  MovedTensor moved_rows(const Strided& from, const WholeRows& to, std::int64_t features,
                         std::int64_t kv_head, std::int64_t b = -1) const;
  MovedTensor moved_gradient(const Strided& to, const WholeRows& from, std::int64_t features,
                             std::int64_t kv_head, std::int64_t b = -1) const;
};

// The schemes: dq, dk, dv, and the rows' sums.
class GatherBackward {
 public:
  explicit GatherBackward(BackwardRanks& ranks);
  void run();

 private:
  // dk or dv in `fast`: what this rank has summed, and what all have, of its own keys.
  struct KeySums {
    WholeRows mine[2];  // of all keys: of this key head, and of the last, on its way
    WholeRows parts;    // [rank, batch][owned]
    std::int64_t features = 0;
  };

  std::vector<MovedTensor> moved_keys_of(std::int64_t kv_head) const;
  std::vector<MovedTensor> moved_queries(std::int64_t kv_head) const;
  const KeyRows& keys_of(std::int64_t kv_head) const noexcept;
  void compute_own_rows(std::int64_t kv_head, std::int64_t b);
  void compute_keys(std::int64_t kv_head);
  void compute_chunks(std::int64_t kv_head, std::int64_t b, std::int64_t begin, std::int64_t end);
  void return_keys(std::int64_t kv_head);
  KeyRange seen_keys(std::int64_t b) const;
  Strided part_of(const KeySums& sums) const;
  RankRows sent_sums(std::int64_t kv_head) const;
  RankRows received_sums() const;
  void start_sums(std::int64_t kv_head);
  void finish_sums(std::int64_t kv_head);
  template <class T>
  void join(const KeySums& sums, std::int64_t kv_head, const Strided& to);

  BackwardRanks& r_;
  const bool keys_apart_;  // one_process: dk and dv by chunks of keys
  const bool fast_keys_;   // fast: by rows
  const Needs needs_;
  std::vector<OwnRows> own_;            // of each sequence
  KeyRows keys_[3];                     // of this key head, the next and, in one_process, the last
  WholeRows q_[2], dout_[2], sums_[2];  // one_process: of all queries of a key head, and the next
  WholeRows dk_, dv_;                   // one_process: of the rank's chunks
  KeySums dk_sums_, dv_sums_;
  WholeRows joined_;  // fast: of dk, then of dv, of the rank's own keys, in f64
  Exchange returned_;
};

class HeadsBackward {
 public:
  explicit HeadsBackward(BackwardRanks& ranks);
  void run();

 private:
  void compute(const Item& item);

  BackwardRanks& r_;
  KeyRows keys_;
  WholeRows q_, dout_, dlse_, dq_, dk_, dv_, sums_;
};

// Then dsinks, dalibi and dbias.
class JoinBackward {
 public:
  explicit JoinBackward(BackwardRanks& ranks);
  void run();

 private:
  struct Columns {  // of dbias: those of some keys
    std::int64_t begin = 0, end = 0;
  };
  bool bias_of_keys() const noexcept;  // whose columns are divided among the ranks
  std::vector<MovedTensor> moved() const;
  BackwardCall call_of_rows() const;
  void join_rows();
  void compute_columns(const Columns& columns);
  void share_columns();
  std::vector<Columns> columns_of(int rank) const;

  BackwardRanks& r_;
  WholeRows sums_, q_, dout_, k_, v_, k_scales_, v_scales_;  // of all heads
  Tensor nothing_;                                           // a row of zeros
};

}  // namespace attend::distributed
