// Attention over several processes ("ranks"), each of which holds some of the tokens. The caller
// describes the whole problem, as one call of attention() would be given it, and every rank hands
// in the rows that it owns:
//
//   using namespace attend;
//   const auto layouts = distributed::balanced_layouts({.queries = T, .keys = T}, {.causal = true},
//                                                      group.size());
//   // q, out [batch, heads, layouts.queries.owned(rank), d]; k, v likewise by layouts.keys
//   distributed::attention(group, layouts, q, k, v, out, {.causal = true});
//
// All ranks call the same functions in the same order. What is between them is a Group: here are
// threads of one process, in <attend/mpi.h> processes of MPI, and one's own is two functions.
// How it works, and what it costs: docs/distributed.md.
#pragma once

#include <attend/attention.h>

#include <chrono>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace attend::distributed {

// Another rank did not answer in time, is gone, or has given up. The Group refuses further calls;
// what the call was to write may be written in part.
struct ATTEND_API PeerError : Error {
  using Error::Error;
};

// ---- Group
// ---------------------------------------------------------------------------------------

// A transfer under way. It may be destroyed before it is done, if it never will be.
class ATTEND_API Pending {
 public:
  virtual ~Pending() = default;
  // Moves it on without waiting, and says whether it is done; from then on always. Throws PeerError
  // if it is known that it never will be.
  virtual bool poll() = 0;
  // Waits until it is done, at most so long, and says whether it is. This one polls: without pauses
  // for a millisecond, and while it moves; else with pauses of up to a millisecond.
  virtual bool wait(std::chrono::milliseconds at_most);
  // Whether large messages of it are on their way, as far as that is known: a rank that has begun
  // it has some left.
  virtual bool moves() const { return false; }
  // Ranks from which something is still to come, for messages; none if that is not known.
  virtual std::vector<int> missing() const { return {}; }

 private:
  // Of all waits so far: the time that is left without pauses, and the last pause.
  std::chrono::nanoseconds spin_ = std::chrono::milliseconds(1), pause_{0};
};

// Some ranks, and how bytes move between them. A Group is used by one thread at a time, and calls
// nothing of the library. Every rank starts the same transfers in the same order; the next may be
// started before the last is done.
class ATTEND_API Group {
 public:
  Group() = default;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  virtual ~Group() = default;

  virtual int rank() const noexcept = 0;  // of this process: 0 to size() - 1
  virtual int size() const noexcept = 0;

  // Sends send[r] to rank r and fills receive[r] with what rank r sent: both have size() entries,
  // whose sizes agree on both sides, of any number of bytes, often 0. Of this rank's own entry both
  // are empty. Neither list is used after the return; the memory is, until the transfer is done, or
  // until the Group is gone if it never is (see keep()).
  virtual std::unique_ptr<Pending> exchange(std::span<const std::span<const std::byte>> send,
                                            std::span<const std::span<std::byte>> receive) = 0;
  // The bytes of rank `root` to all.
  virtual std::unique_ptr<Pending> broadcast(int root, std::span<std::byte> bytes) = 0;

  // ---- What the library notes here ----
  // Why this Group takes no more calls; empty: it does.
  const std::string& failure() const noexcept { return failure_; }
  void fail(std::string why);
  // Memory of transfers that will never be done: freed with the Group, which ends them first.
  void keep(std::shared_ptr<const void> memory) { kept_.push_back(std::move(memory)); }
  std::int64_t next_call() noexcept { return calls_++; }
  // How long calls have waited for transfers with nothing else to do, since the Group was made: the
  // communication that work did not hide, and what other ranks came later.
  std::chrono::nanoseconds waited() const noexcept { return waited_; }
  void add_wait(std::chrono::nanoseconds time) noexcept { waited_ += time; }

 protected:
  // For a Group that cannot end its transfers: it may keep the memory for good.
  std::vector<std::shared_ptr<const void>> take_kept() noexcept { return std::move(kept_); }

 private:
  std::vector<std::shared_ptr<const void>> kept_;
  std::string failure_;
  std::int64_t calls_ = 0;
  std::chrono::nanoseconds waited_{0};
};

// Ranks that are threads of this process, for tests and debugging.
class ATTEND_API ThreadGroup {
 public:
  // Called by a rank before each of its transfers, which are counted from 0: may wait, or throw.
  using BeforeTransfer = std::function<void(int rank, std::int64_t transfer)>;
  explicit ThreadGroup(int size, BeforeTransfer before = {});
  ~ThreadGroup();
  ThreadGroup(const ThreadGroup&) = delete;
  ThreadGroup& operator=(const ThreadGroup&) = delete;

  Group& rank(int r) const;
  // Calls body(rank(r)) for every r on a thread of its own, and returns what each threw, or null.
  std::vector<std::exception_ptr> run(const std::function<void(Group&)>& body) const;
  // Bytes that rank `from` has sent to others.
  std::int64_t bytes_sent(int from) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// ---- Layout
// --------------------------------------------------------------------------------------

// Positions are dealt out in granules of so many: a chunk of the kernels' sums.
inline constexpr std::int64_t kGranule = 256;

// Who owns which positions, of queries or of keys. A problem with a batch has one sequence here,
// and all elements of the batch are cut alike; packed sequences are cut each by itself. A rank's
// tensors hold the positions that it owns in ascending order, sequence by sequence. Bits do not
// depend on the layout; granules that are not multiples of 256 cost some more bytes backward.
class ATTEND_API Layout {
 public:
  // Positions [begin, end) of a sequence, which lie in their owner's tensors from row `local` on.
  struct Run {
    std::int64_t sequence = 0, begin = 0, end = 0, local = 0;
  };

  Layout() = default;
  // owners[s][g]: the rank that owns granule g of sequence s; the last may be shorter. Any
  // assignment will do.
  Layout(std::vector<std::int64_t> lengths, std::vector<std::vector<int>> owners, int ranks,
         std::int64_t granule = kGranule);
  // Granules dealt 0 ... P - 1, P - 1 ... 0, and so on, through all sequences: balanced where
  // attention is causal.
  static Layout serpentine(std::vector<std::int64_t> lengths, int ranks,
                           std::int64_t granule = kGranule);
  // The first granules to rank 0, the next to rank 1: as many to each, or one fewer.
  static Layout contiguous(std::vector<std::int64_t> lengths, int ranks,
                           std::int64_t granule = kGranule);

  int ranks() const noexcept { return ranks_; }
  std::int64_t granule() const noexcept { return granule_; }
  std::int64_t sequences() const noexcept { return static_cast<std::int64_t>(lengths_.size()); }
  std::int64_t length(std::int64_t sequence) const { return lengths_.at(at(sequence)); }
  std::int64_t total() const noexcept;  // positions of all sequences
  std::int64_t owned(int rank) const;   // of them, those of one rank
  // A rank's positions, ascending; granules that follow each other are one run.
  const std::vector<Run>& runs(int rank) const { return runs_.at(at(rank)); }
  int owner(std::int64_t sequence, std::int64_t position) const;

  friend bool operator==(const Layout& a, const Layout& b) noexcept {
    return a.ranks_ == b.ranks_ && a.granule_ == b.granule_ && a.lengths_ == b.lengths_ &&
           a.owners_ == b.owners_;
  }

 private:
  static std::size_t at(std::int64_t n) noexcept { return static_cast<std::size_t>(n); }
  std::vector<std::int64_t> lengths_;
  std::vector<std::vector<int>> owners_;
  std::vector<std::vector<Run>> runs_;
  int ranks_ = 0;
  std::int64_t granule_ = kGranule;
};

// Of one problem. In self-attention both are the same.
struct Layouts {
  Layout queries, keys;
};

// The sizes of a whole problem, as q [batch, heads, queries, d] and k [batch, key heads, keys, d]
// have them; packed, queries and keys are those of all sequences.
struct WholeSizes {
  std::int64_t queries = 0, keys = 0;
  std::int64_t batch = 1, heads = 1, key_heads = 1, d = 0, dv = 0;
  DType type = DType::f32;
  // Of keys and values that have a type of their own, as those of a KV cache.
  std::optional<DType> k_type = {}, v_type = {};
};

// Serpentine, or, where pairs are hidden by lengths, packed sequences or a window, granules given
// to whoever has least to do: by the number of pairs that may be seen, of queries and of keys.
// Where a window is narrower than a rank's share, neighbours stay together, so that ranks need few
// keys of others. If there are as many queries as keys in each sequence, both layouts are the same.
// Reads `queries`, `keys` and `batch` of the sizes.
ATTEND_API Layouts balanced_layouts(const WholeSizes& whole, const AttentionOptions& options,
                                    int ranks);

// Copies a rank's rows out of a tensor of the whole, and back. `dim` is the one of the positions.
ATTEND_API Tensor take_rows(const Layout& layout, int rank, const ConstTensorView& whole,
                            int dim = 2);
ATTEND_API void put_rows(const Layout& layout, int rank, const ConstTensorView& rows,
                         const TensorView& whole, int dim = 2);

// ---- Attention
// -----------------------------------------------------------------------------------

enum class Scheme : std::uint8_t {
  automatic,  // heads where there are enough key heads (times the batch) for all ranks, and where
              // they do not move more than twice the bytes of gather; else gather
  heads,      // a rank computes whole heads: q, k, v go to it, out goes back
  gather,     // a rank computes its own queries: keys and values of all ranks come, head by head
};

enum class Bits : std::uint8_t {
  one_process,  // those of the undivided call, for any number of ranks and any layout
  fast,         // gradients of keys and values may be joined in f64 in the order of the ranks
};

struct DistributedOptions {
  Scheme scheme = Scheme::automatic;
  Bits bits = Bits::one_process;
  // How long a rank waits for others, when it has nothing else to do, before it throws PeerError.
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
};

// attention() of the whole problem. The options are those of the whole, the same on every rank:
// masks, bias, blocks, lengths and offsets are given to each of them. q, k, v, out and lse are the
// rank's rows: [batch, heads, owned, d], packed [1, heads, owned, d]; k_scales and v_scales lie as
// k and v do. weights, scores and visited_blocks of the outputs, and keys on pages, are refused.
//
// If one rank's arguments are wrong, or differ from the others', every rank throws the same
// InvalidArgument, which names the rank, and the Group can be used again.
ATTEND_API void attention(Group& group, const Layouts& layouts, const ConstTensorView& q,
                          const ConstTensorView& k, const ConstTensorView& v,
                          const Required<TensorView>& out, const AttentionOptions& options = {},
                          const AttentionOutputs& outputs = {},
                          const DistributedOptions& distributed = {},
                          Context& context = default_context());

// attention_backward() of the whole problem. Inputs and dq, dk, dv are the rank's rows; dbias,
// dsinks and dalibi are those of the whole, on every rank.
ATTEND_API void attention_backward(Group& group, const Layouts& layouts,
                                   const BackwardInputs& inputs, const AttentionOptions& options,
                                   const AttentionGradients& gradients,
                                   const DistributedOptions& distributed = {},
                                   Context& context = default_context());

// Takes part in the call that the others make next with an error instead of arguments, for whoever
// cannot even name them: every rank throws InvalidArgument, "rank 1: " and what is wrong, and the
// Group can be used again. Without it the others would wait until their time limit.
[[noreturn]] ATTEND_API void refuse_call(Group& group, const std::string& what_is_wrong,
                                         const DistributedOptions& distributed = {},
                                         Context& context = default_context());

// ---- Plan
// ----------------------------------------------------------------------------------------

// What a call will cost one rank.
struct RankCost {
  std::int64_t sent = 0, received = 0;  // bytes of tensors, to and from other ranks
  std::int64_t memory = 0;              // bytes beside the caller's tensors and workspaces
  double products = 0;  // work: pairs of a query and a key that may be seen, times q . k and such
};

struct ATTEND_API DistributedPlan {
  // Those that are used: automatic may choose two.
  Scheme scheme = Scheme::gather, backward_scheme = Scheme::gather;
  Bits bits = Bits::one_process;
  std::vector<RankCost> forward, backward;  // of each rank; without dbias, dsinks, dalibi

  std::string describe() const;  // bytes, memory, and how evenly the work is divided
};

// Nothing is sent: any process can ask.
ATTEND_API DistributedPlan plan(const Layouts& layouts, const WholeSizes& whole,
                                const AttentionOptions& options = {},
                                const DistributedOptions& distributed = {});

}  // namespace attend::distributed
