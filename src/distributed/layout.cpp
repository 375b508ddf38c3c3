// Who owns which positions.
#include <attend/distributed.h>

#include "api/overlap.h"
#include "api/tensor_memory.h"
#include "core/text.h"

#include <algorithm>

namespace attend::distributed {
namespace {

std::int64_t granules_of(std::int64_t length, std::int64_t granule) {
  return length / granule + (length % granule != 0 ? 1 : 0);
}

void check_granules(const std::vector<std::int64_t>& lengths, int ranks, std::int64_t granule) {
  if (ranks < 1) throw InvalidArgument(text("Layout: ranks is ", ranks, "; it must be at least 1"));
  if (granule < 1)
    throw InvalidArgument(text("Layout: granule is ", granule, "; it must be at least 1"));
  for (std::size_t s = 0; s < lengths.size(); ++s)
    if (lengths[s] < 0)
      throw InvalidArgument(
          text("Layout: lengths[", s, "] is ", lengths[s], "; it must be at least 0"));
}

// owner(number of the granule, of all) for every one.
template <class Owner>
Layout dealt(std::vector<std::int64_t> lengths, int ranks, std::int64_t granule, Owner owner) {
  check_granules(lengths, ranks, granule);
  std::vector<std::vector<int>> owners;
  std::int64_t number = 0;
  for (const std::int64_t length : lengths) {
    std::vector<int>& of = owners.emplace_back();
    for (std::int64_t g = 0; g < granules_of(length, granule); ++g) of.push_back(owner(number++));
  }
  return {std::move(lengths), std::move(owners), ranks, granule};
}

}  // namespace

Layout::Layout(std::vector<std::int64_t> lengths, std::vector<std::vector<int>> owners, int ranks,
               std::int64_t granule)
    : lengths_(std::move(lengths)), owners_(std::move(owners)), ranks_(ranks), granule_(granule) {
  check_granules(lengths_, ranks, granule);
  if (owners_.size() != lengths_.size())
    throw InvalidArgument(text("Layout: owners are those of ", owners_.size(), " sequences, of ",
                               lengths_.size(), " the lengths are given"));
  runs_.resize(at(ranks));
  std::vector<std::int64_t> owned(at(ranks));
  for (std::size_t s = 0; s < lengths_.size(); ++s) {
    const std::int64_t count = granules_of(lengths_[s], granule);
    if (static_cast<std::int64_t>(owners_[s].size()) != count)
      throw InvalidArgument(text("Layout: sequence ", s, " of length ", lengths_[s], " has ",
                                 owners_[s].size(), " owners; it has ", count, " granules of ",
                                 granule));
    for (std::int64_t g = 0; g < count; ++g) {
      const int rank = owners_[s][at(g)];
      if (rank < 0 || rank >= ranks)
        throw InvalidArgument(text("Layout: granule ", g, " of sequence ", s, " is owned by rank ",
                                   rank, "; there are ", ranks));
      const Run run{static_cast<std::int64_t>(s), g * granule,
                    std::min(lengths_[s], (g + 1) * granule), owned[at(rank)]};
      auto& runs = runs_[at(rank)];
      owned[at(rank)] += run.end - run.begin;
      if (!runs.empty() && runs.back().sequence == run.sequence && runs.back().end == run.begin)
        runs.back().end = run.end;
      else runs.push_back(run);
    }
  }
}

Layout Layout::serpentine(std::vector<std::int64_t> lengths, int ranks, std::int64_t granule) {
  return dealt(std::move(lengths), ranks, granule, [&](std::int64_t n) {
    const auto there = static_cast<int>(n % ranks);
    return n / ranks % 2 == 0 ? there : ranks - 1 - there;
  });
}

Layout Layout::contiguous(std::vector<std::int64_t> lengths, int ranks, std::int64_t granule) {
  check_granules(lengths, ranks, granule);
  std::int64_t all = 0;
  for (const std::int64_t length : lengths) all += granules_of(length, granule);
  return dealt(std::move(lengths), ranks, granule, [&](std::int64_t n) {
    const std::int64_t each = all / ranks, more = all % ranks;  // the first have one more
    if (n < more * (each + 1) || each == 0) return static_cast<int>(n / (each + 1));
    return static_cast<int>(more + (n - more * (each + 1)) / each);
  });
}

std::int64_t Layout::total() const noexcept {
  std::int64_t sum = 0;
  for (const std::int64_t length : lengths_) sum += length;
  return sum;
}

std::int64_t Layout::owned(int rank) const {
  const auto& runs = runs_.at(at(rank));
  return runs.empty() ? 0 : runs.back().local + runs.back().end - runs.back().begin;
}

int Layout::owner(std::int64_t sequence, std::int64_t position) const {
  if (sequence < 0 || sequence >= sequences())
    throw InvalidArgument(text("Layout: sequence is ", sequence, "; there are ", sequences()));
  if (position < 0 || position >= length(sequence))
    throw InvalidArgument(text("Layout: position is ", position, "; sequence ", sequence,
                               " has length ", length(sequence)));
  return owners_.at(at(sequence)).at(at(position / granule_));
}

// ---- Rows of a rank and of the whole
// -------------------------------------------------------------

namespace {

// Calls use(rows of the whole, rows of the rank) for every run.
template <class Use>
void for_rows(const char* function, const Layout& layout, int rank, const ConstTensorView& whole,
              const Shape& rows, int dim, Use use) {
  if (dim < 0 || dim >= whole.rank() || whole.size(dim) != layout.total())
    throw InvalidArgument(text(function, ": the whole is ", whole.shape(), ", dimension ", dim,
                               " must be the ", layout.total(), " positions of the layout"));
  if (rank < 0 || rank >= layout.ranks())
    throw InvalidArgument(text(function, ": rank is ", rank, "; there are ", layout.ranks()));
  Shape wanted = whole.shape();
  wanted[dim] = layout.owned(rank);
  if (rows != wanted)
    throw InvalidArgument(text(function, ": the rows are ", rows, "; they must be ", wanted));
  std::vector<std::int64_t> starts{0};
  for (std::int64_t s = 0; s < layout.sequences(); ++s)
    starts.push_back(starts.back() + layout.length(s));
  for (const Layout::Run& run : layout.runs(rank)) {
    const std::int64_t from = starts[static_cast<std::size_t>(run.sequence)] + run.begin;
    const std::int64_t count = run.end - run.begin;
    use(from, from + count, run.local, run.local + count);
  }
}

}  // namespace

Tensor take_rows(const Layout& layout, int rank, const ConstTensorView& whole, int dim) {
  Shape shape = whole.shape();
  if (dim >= 0 && dim < whole.rank() && rank >= 0 && rank < layout.ranks())
    shape[dim] = layout.owned(rank);
  Tensor rows(shape, whole.dtype());
  for_rows("take_rows", layout, rank, whole, rows.shape(), dim,
           [&](std::int64_t from, std::int64_t to, std::int64_t begin, std::int64_t end) {
             const Tensor part = Tensor::copy_of(whole.slice(dim, from, to));
             copy_elements(static_cast<const std::byte*>(part.view().data()),
                           rows.view().slice(dim, begin, end));
           });
  return rows;
}

void put_rows(const Layout& layout, int rank, const ConstTensorView& rows, const TensorView& whole,
              int dim) {
  for (const ConstTensorView& view : {rows, ConstTensorView(whole)})
    if (view.device() != Device{})
      throw InvalidArgument(
          text("put_rows: a tensor is on ", view.device(), ", not in host memory"));
  if (rows.dtype() != whole.dtype())
    throw InvalidArgument(text("put_rows: the rows are ", rows.dtype(), ", the whole is ",
                               whole.dtype(), "; they must be of one type"));
  if (rows && whole && overlap(rows, whole))
    throw InvalidArgument("put_rows: the whole overlaps the rows in memory; outputs must not");
  for_rows("put_rows", layout, rank, whole, rows.shape(), dim,
           [&](std::int64_t from, std::int64_t to, std::int64_t begin, std::int64_t end) {
             const Tensor part = Tensor::copy_of(rows.slice(dim, begin, end));
             copy_elements(static_cast<const std::byte*>(part.view().data()),
                           whole.slice(dim, from, to));
           });
}

}  // namespace attend::distributed
