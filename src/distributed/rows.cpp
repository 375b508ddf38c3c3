#include "distributed/rows.h"

#include "core/partial_state.h"

#include <algorithm>
#include <cstring>

namespace attend::distributed {
namespace {

// `rows` rows of a strided tensor, from its address on, and of a message.
template <bool kIntoMessage, class Element>
void copy_elements_of(const Strided& t, std::int64_t rows, std::int64_t features,
                      std::byte* message) {
  auto* packed = reinterpret_cast<Element*>(message);
  for (std::int64_t i = 0; i < rows; ++i, packed += features) {
    auto* row = reinterpret_cast<Element*>(t.data) + i * t.stride[2];
    for (std::int64_t x = 0; x < features; ++x) {
      if (kIntoMessage) std::memcpy(packed + x, row + x * t.stride[3], sizeof(Element));
      else std::memcpy(row + x * t.stride[3], packed + x, sizeof(Element));
    }
  }
}

template <bool kIntoMessage>
void copy_rows(const Strided& t, std::int64_t rows, std::int64_t features, std::byte* message) {
  const std::int64_t size = size_of(t.type), bytes = features * size;
  if (t.stride[3] == 1 || features == 1) {
    const std::int64_t stride = t.stride[2] * size;
    const std::int64_t step = stride == bytes ? rows : 1;  // rows that lie side by side
    for (std::int64_t i = 0; i < rows; i += step) {
      std::byte* const row = t.data + i * stride;
      if (kIntoMessage)
        std::memcpy(message + i * bytes, row, static_cast<std::size_t>(step * bytes));
      else std::memcpy(row, message + i * bytes, static_cast<std::size_t>(step * bytes));
    }
    return;
  }
  switch (size) {
    case 1: return copy_elements_of<kIntoMessage, std::uint8_t>(t, rows, features, message);
    case 2: return copy_elements_of<kIntoMessage, std::uint16_t>(t, rows, features, message);
    case 4: return copy_elements_of<kIntoMessage, std::uint32_t>(t, rows, features, message);
    default: return copy_elements_of<kIntoMessage, std::uint64_t>(t, rows, features, message);
  }
}

// Row `run.begin` of head h.
Strided rows_at(const WholeProblem& whole, const MovedTensor& t, std::int64_t h, std::int64_t b,
                const Layout::Run& run, Place place) {
  if (place == Place::local)
    return moved_to(t.local, whole.local_batch(b), t.local_head + h, run.local);
  return moved_to(t.whole, 0, h,
                  whole.starts(t.queries)[static_cast<std::size_t>(b)] + run.begin - t.first_row);
}

template <bool kIntoMessage>
void move_rows(const WholeProblem& whole, const std::vector<MovedTensor>& tensors,
               const Blocks& blocks, Place place, std::byte* message) {
  for (const MovedTensor& t : tensors)
    for (std::int64_t h = 0; h < t.heads; ++h)
      for_blocks(whole, t.queries, blocks, [&](std::int64_t b, const Layout::Run& run) {
        copy_rows<kIntoMessage>(rows_at(whole, t, h, b, run, place), run.end - run.begin,
                                t.features, message);
        message += (run.end - run.begin) * t.row_bytes();
      });
}

// Ranges in ascending order, joined where they meet.
Needs::Ranges joined(Needs::Ranges ranges) {
  std::sort(ranges.begin(), ranges.end(),
            [](const KeyRange& a, const KeyRange& b) { return a.begin < b.begin; });
  Needs::Ranges result;
  for (const KeyRange& range : ranges) {
    if (range.begin >= range.end) continue;
    if (!result.empty() && range.begin <= result.back().end)
      result.back().end = std::max(result.back().end, range.end);
    else result.push_back(range);
  }
  return result;
}

// The queries that may see a key of [begin, end). Both ends of what a query sees never fall.
KeyRange queries_of_keys(const Problem& p, const Sequence& s, std::int64_t begin,
                         std::int64_t end) {
  const auto first = [&](auto reached) {
    std::int64_t low = 0, high = s.q_length;
    while (low < high) {
      const std::int64_t middle = low + (high - low) / 2;
      if (reached(positions(p, s, middle))) high = middle;
      else low = middle + 1;
    }
    return low;
  };
  return {first([&](const KeyRange& keys) { return keys.end > begin; }),
          first([&](const KeyRange& keys) { return keys.begin >= end; })};
}

}  // namespace

Needs Needs::of(const WholeProblem& whole, bool chunks) {
  Needs needs;
  const auto ranks = static_cast<std::size_t>(whole.layouts->queries.ranks());
  const auto batch = static_cast<std::size_t>(whole.batch());
  needs.keys.assign(ranks, std::vector<Ranges>(batch));
  needs.queries.assign(ranks, std::vector<Ranges>(batch));
  for (std::size_t r = 0; r < ranks; ++r) {
    for_blocks(whole, true, {.owner = static_cast<int>(r)},
               [&](std::int64_t b, const Layout::Run& run) {
                 const Sequence& s = whole.sequences[static_cast<std::size_t>(b)];
                 const auto seen = [&](std::int64_t i) { return positions(whole.problem, s, i); };
                 needs.keys[r][static_cast<std::size_t>(b)].push_back(
                     {std::max<std::int64_t>(seen(run.begin).begin, 0),
                      std::min(seen(run.end - 1).end, s.k_stored)});
               });
  }
  for (std::size_t b = 0; chunks && b < batch; ++b) {
    const Sequence& s = whole.sequences[b];
    for (std::int64_t at = 0; at < s.k_stored; at += kGranule) {
      const auto r = static_cast<std::size_t>(worker_of(whole, static_cast<std::int64_t>(b), at));
      const std::int64_t end = std::min(s.k_stored, at + kGranule);
      needs.keys[r][b].push_back({at, end});
      needs.queries[r][b].push_back(queries_of_keys(whole.problem, s, at, end));
    }
  }
  for (auto* all : {&needs.keys, &needs.queries})
    for (auto& of_rank : *all)
      for (Ranges& ranges : of_rank) ranges = joined(std::move(ranges));
  return needs;
}

std::vector<KeyChunk> key_chunks(const WholeProblem& whole) {
  std::vector<KeyChunk> chunks;
  for (std::int64_t b = 0; b < whole.batch(); ++b) {
    const std::int64_t length = whole.sequences[static_cast<std::size_t>(b)].k_stored;
    for (std::int64_t at = 0; at < length; at += kGranule)
      chunks.push_back({b, at, std::min(length, at + kGranule), worker_of(whole, b, at)});
  }
  return chunks;
}

double bytes_of_states(const WholeProblem& whole) {
  const Problem& p = whole.problem;
  double bytes = 0;
  for (const Sequence& s : whole.sequences) {
    const std::int64_t chunks = (s.k_stored + kGranule - 1) / kGranule;
    const std::int64_t row = chunks * (p.dv + kStateColumns) * size_of(DType::f64) +
                             whole.layouts->keys.ranks() * p.d * size_of(p.type);
    bytes += static_cast<double>(s.q_length * p.heads) * static_cast<double>(row);
  }
  return bytes;
}

bool ships_states(const WholeProblem& whole) {
  const Problem& p = whole.problem;
  const Layout& keys = whole.layouts->keys;
  if (keys.granule() % kGranule != 0 || keys.ranks() == 1 || p.heads == 0) return false;
  const std::int64_t key = p.d * size_of(type_of_k(p)) + p.dv * size_of(type_of_v(p));
  double rows_of_keys = 0;  // bytes
  for (const Sequence& s : whole.sequences) {
    if (s.k_stored == 0 && s.q_length > 0) return false;  // a row needs a state to end with
    rows_of_keys += static_cast<double>(s.k_stored * p.kv_heads) * static_cast<double>(key);
  }
  return bytes_of_states(whole) < rows_of_keys * (keys.ranks() - 1);
}

void clear_neighbours(const WholeProblem& whole, const Needs& needs, int rank,
                      const MovedTensor& t) {
  const auto& of = t.queries ? needs.queries : needs.keys;
  const auto& starts = whole.starts(t.queries);
  for (std::size_t b = 0; b < whole.sequences.size(); ++b) {
    const std::int64_t length = starts[b + 1] - starts[b];
    const auto clear = [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t h = 0; h < t.heads; ++h)
        for (std::int64_t i = std::max<std::int64_t>(begin, 0); i < std::min(end, length); ++i)
          std::memset(moved_to(t.whole, 0, h, starts[b] + i - t.first_row).data, 0,
                      static_cast<std::size_t>(t.whole.stride[2] * size_of(t.whole.type)));
    };
    for (const KeyRange& range : of[static_cast<std::size_t>(rank)][b]) {
      clear(range.begin - kGranule, range.begin);
      clear(range.end, range.end + kGranule);
    }
  }
}

OwnRows own_rows(const WholeProblem& whole, int rank, std::int64_t b) {
  OwnRows own;
  for_blocks(whole, true, {.owner = rank, .b = b}, [&](std::int64_t, const Layout::Run& run) {
    if (own.runs.empty()) own.first = run.local;
    own.runs.push_back({run.begin, run.end, own.count});
    own.count += run.end - run.begin;
  });
  return own;
}

// Runs of a sequence follow one another.
RunsOfRanks runs_of_ranks(const WholeProblem& whole) {
  RunsOfRanks found;
  const Layout& layout = whole.layout(true);
  for (int r = 0; r < layout.ranks(); ++r) {
    const auto& runs = layout.runs(r);
    for (std::size_t n = 0, end; n < runs.size(); n = end) {
      for (end = n + 1; end < runs.size() && runs[end].sequence == runs[n].sequence;) ++end;
      (end - n == 1 ? found.one : found.several) = true;
    }
  }
  return found;
}

void cut_own_rows(const WholeProblem& whole, const OwnRows& own, Piece piece, Problem& problem,
                  Call& call, PieceMemory& memory) {
  const bool one = own.runs.size() == 1;
  piece.i_begin = one ? own.runs.front().begin : 0;
  piece.i_end = own.runs.back().end;
  cut(whole, piece, problem, call, memory);
  if (one) return;
  problem.q_length = own.count;
  problem.packed_queries = problem.query_runs = true;
  call.query_runs = own.runs.data();
  call.query_run_count = static_cast<std::int64_t>(own.runs.size());
}

// Runs and needs both ascend, and are apart: blocks are as many as the runs, and one more for each
// gap in what is needed of a sequence.
std::size_t most_blocks(const WholeProblem& whole, bool queries, const Needs* needs) {
  const Layout& layout = whole.layout(queries);
  std::size_t runs = 0, gaps = 0;
  for (int r = 0; r < layout.ranks(); ++r) runs = std::max(runs, layout.runs(r).size());
  if (!whole.packed()) runs *= static_cast<std::size_t>(whole.batch());
  if (needs == nullptr) return runs;
  for (const auto& of_rank : queries ? needs->queries : needs->keys) {
    std::size_t more = 0;
    for (const Needs::Ranges& ranges : of_rank) more += ranges.empty() ? 0 : ranges.size() - 1;
    gaps = std::max(gaps, more);
  }
  return runs + gaps;
}

std::int64_t bytes_of(const WholeProblem& whole, const std::vector<MovedTensor>& tensors,
                      const Blocks& blocks) {
  std::int64_t bytes = 0;
  for (const bool queries : {false, true}) {
    std::int64_t rows = 0, row_bytes = 0;
    for (const MovedTensor& t : tensors)
      if (t.queries == queries) row_bytes += t.heads * t.row_bytes();
    if (row_bytes == 0) continue;
    for_blocks(whole, queries, blocks,
               [&](std::int64_t, const Layout::Run& run) { rows += run.end - run.begin; });
    bytes += rows * row_bytes;
  }
  return bytes;
}

std::size_t transfers_of(const WholeProblem& whole, const std::vector<MovedTensor>& tensors,
                         const Needs* needs) {
  std::size_t count = 0;
  for (const MovedTensor& t : tensors)
    count += static_cast<std::size_t>(t.heads) * most_blocks(whole, t.queries, needs);
  return count;
}

std::vector<std::span<std::byte>> memory_of(const WholeProblem& whole, const MovedTensor& t,
                                            std::int64_t h, const Blocks& blocks, Place place) {
  std::vector<std::span<std::byte>> memory;
  for_blocks(whole, t.queries, blocks, [&](std::int64_t b, const Layout::Run& run) {
    memory.emplace_back(rows_at(whole, t, h, b, run, place).data,
                        static_cast<std::size_t>((run.end - run.begin) * t.row_bytes()));
  });
  return memory;
}

void place_rows(const WholeProblem& whole, const MovedTensor& t, int owner) {
  for (std::int64_t h = 0; h < t.heads; ++h)
    for_blocks(whole, t.queries, {.owner = owner}, [&](std::int64_t b, const Layout::Run& run) {
      copy_rows<true>(rows_at(whole, t, h, b, run, Place::local), run.end - run.begin, t.features,
                      rows_at(whole, t, h, b, run, Place::whole).data);
    });
}

void pack(const WholeProblem& whole, const std::vector<MovedTensor>& tensors, const Blocks& blocks,
          Place from, std::byte* message) {
  move_rows<true>(whole, tensors, blocks, from, message);
}
void unpack(const WholeProblem& whole, const std::vector<MovedTensor>& tensors,
            const Blocks& blocks, Place to, const std::byte* message) {
  move_rows<false>(whole, tensors, blocks, to, const_cast<std::byte*>(message));
}

WholeRows::WholeRows(const Context& context, std::int64_t heads, std::int64_t rows,
                     std::int64_t features, DType type)
    : memory_(std::make_shared<Tensor>(context.make_tensor({heads, rows, features}, type))) {
  tensor_ = {.data = static_cast<std::byte*>(memory_->view().data()),
             .type = type,
             .given = true,
             .stride = {0, rows * features, features, 1}};
}

void WholeRows::clear(std::int64_t begin, std::int64_t end) noexcept {
  if (begin >= end || tensor_.data == nullptr) return;
  const std::int64_t bytes = tensor_.stride[2] * size_of(tensor_.type);
  std::memset(tensor_.data + begin * bytes, 0, static_cast<std::size_t>((end - begin) * bytes));
}

}  // namespace attend::distributed
