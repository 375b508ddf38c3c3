// dk or dv of a key head: sums over its query rows, group by group of score_gradients.h.
//
//   dK [keys][d]   = scale * sum over the rows of  dS^T Q        pairs = dS, rows = q
//   dV [keys][dv]  =         sum over the rows of  P^T dO        pairs = P,  rows = dout
//
// A group (up to 128 rows; NEON: 96) is one chain of products; groups of up to 1024 rows (960)
// are added in f32, the segments in f64: the error of a sum of 128 + 8 is less than that of one
// chain of 256. Where one group holds all the rows, its products go straight to where the gradient
// is wanted.
#pragma once

#include "cpu/gradient_pairs.h"
#include "cpu/segments.h"

namespace attend {
namespace {

template <class V>
class KeySums {
  using Operand = OperandOf<V>;
  using Sum = SumOf<V>;
  using D = typename V::Double;
  using TileGroup = ScoreGradients<V>;
  static constexpr int kMost = TileGroup::kMost, kGroup = kKeyGroup<V>;
  static constexpr int kPanel = kFeatureVectors<V> * V::kLanes;
  static constexpr int kFew = 32;  // rows that are read too seldom to be packed
  static constexpr int kRowsTogether = [] {
    if constexpr (kMatrix<V>) return Matrix<V>::kRowsTogether;
    else return 1;
  }();
  static constexpr int kStep = 48;  // keys that are tested together for the tiles that see them

 public:
  struct Wanted {
    bool any;
    std::int64_t features;
    const Strided &rows, &to;
    double scale;
  };

  KeySums(BackwardScores<V>& scores, TileGroup& group, Scratch& scratch,
          const Segments<V>& segments, const Wanted& wanted)
      : p(scores.p), call_(scores.call), scores_(scores), group_(group), wanted_(wanted),
        count_(wanted.features), width_(BackwardScores<V>::width(count_)),
        summed_(segments.summed) {
    if (!wanted.any) return;
    const std::int64_t wide = (count_ + kPanel - 1) / kPanel * kPanel;
    panels_ = scratch.take<Operand>(kMatrix<V> ? whole_depth<V>(width_) * kChunk
                                               : wide * TileGroup::kRows);
    row_ = scratch.take<Operand>(kRowsTogether * width_);
    turned_ =
        scratch.take<Operand>(TilesOf<V>::kPanels || kMatrix<V> ? kStep * TileGroup::kRows : 0);
    if (!segments.apart)
      own_ =
          scratch.take<Sum>(saturating_count(narrow(p) ? kChunk : TileGroup::band_keys(p), width_));
    if (!plain() || segments.rows_of_task() > summed_)
      total_ = scratch.take<double>(saturating_count(stored_keys(), count_));
  }

  // GradientTile of f32 sums are whole vectors. Where those would be much longer than the features,
  // only the keys of one chunk have them, and each group of rows joins the f64 sums at once.
  static bool narrow(const BackwardProblem& p) noexcept {
    return BackwardScores<V>::width(p.d) + BackwardScores<V>::width(p.dv) > 2 * (p.d + p.dv);
  }

  // Before the first row of a task; the sums are left in `place` [keys][width], if it is not null.
  void begin(Sum* place) noexcept {
    shared_ = place != nullptr;
    sums_ = shared_ ? place : own_;
    flushed_ = !plain();
    direct_ = false;
    if (wanted_.any && flushed_) clear(total_, stored_keys() * count_);
  }

  // Before the group at hand, the first of its sequence or a later one; `only`: no other comes.
  void open(bool first, bool only) noexcept {
    if (!wanted_.any) return;
    if constexpr (kMatrix<V>) pack_pairs();
    else pack();
    if (first) direct_ = only && may_be_direct();
    stores_ = direct_;
    ATTEND_PATH_IF(direct_, V, "dk and dv stored by products");
    if (direct_ || !(first || empty_)) return;
    empty_ = false;
    if (narrow(p) || p.blocks) {
      clear(sums_, (narrow(p) ? kChunk : scores_.sequence.k_stored) * width_);
    } else {  // where the group sees something, its sums are the first: no need to add
      stores_ = true;
      const std::int64_t keys = scores_.sequence.k_stored;
      const std::int64_t begin = group_.begin < group_.end ? group_.begin : keys;
      const std::int64_t end = group_.begin < group_.end ? group_.end : keys;
      clear(sums_, begin * width_);
      clear(sums_ + end * width_, (keys - end) * width_);
    }
  }

  // Whether all rows of the group are.
  bool finite() const noexcept {
    if (!wanted_.any) return true;
    if constexpr (kMatrix<V>) return GradientMatrix<V>::rows_finite(panels_, packed_rows(), width_);
    V check = V::set(0);  // becomes NaN if anything is not finite
    for (int n = 0; n < group_.rows; ++n)
      for (std::int64_t x = 0; x < width_; x += V::kLanes)
        check = fma(load_elements<V>(row(n, x)), V::set(0), check);
    return all_finite(check);
  }

  // The chunk at hand: += sum over the group's rows of pairs[j][row] * rows[row]. Careful: 0 * NaN
  // is NaN, hidden pairs take no part.
  void add(const Sum* pairs, bool careful) noexcept {
    if (!wanted_.any) return;
    if constexpr (kMatrix<V>) group_products(pairs, careful);
    else if (careful) add_careful(pairs);
    else products(pairs);
    ATTEND_PATH_IF(!stores_, V, "dk and dv of several groups");
    if constexpr (V::kLanes > 2) ATTEND_PATH_IF(narrow(p), V, "dk and dv of narrow heads");
    if (narrow(p)) flush(group_.chunk.from, group_.chunk.to);
  }

  // After the rows [from, to) of the sequence, or at its end.
  void close(std::int64_t from, std::int64_t to, bool last) noexcept {
    if (!wanted_.any || narrow(p)) return;
    if (last ? !plain() : from / summed_ != to / summed_) flush(0, scores_.sequence.k_stored);
  }

  // After the last row of a key head: gradients, or f32 sums in begin()'s place.
  void end() noexcept {
    if (!wanted_.any || direct_) return;
    const std::int64_t keys = paged(p) ? stored_keys() : scores_.sequence.k_stored;
    for (std::int64_t j = 0; j < keys; ++j) {
      Sum* sums = sums_ + (narrow(p) ? 0 : j * width_);
      double* total = flushed_ ? total_ + j * count_ : nullptr;
      if constexpr (kMatrix<V>)
        if (j % 4 == 0) Matrix<V>::keep_awake();
      ATTEND_PATH_IF(flushed_ && plain(), V, "dk and dv of very many rows");
      if (flushed_ && plain()) add_wide<V>(sums, count_, total);
      if (shared_) {
        for (std::int64_t x = 0; flushed_ && x < count_; ++x) sums[x] = static_cast<Sum>(total[x]);
      } else if (flushed_) {
        store_scaled<V>(wanted_.to, place_of(j), count_, total, wanted_.scale);
      } else {
        store_scaled<V>(wanted_.to, place_of(j), count_, sums, wanted_.scale);
      }
    }
  }

 private:
  // A group's sums are added to those of the rows before; or are the first, or the gradient, which
  // has a factor. A sum that is -0 is +0, as it is among others.
  struct AddOrScale {
    bool add;
    Sum factor;
    template <int kRows, int kVectors>
    ATTEND_INLINE void operator()(const Operands<V>& x, V (&sum)[kRows][kVectors]) const {
      unrolled<kRows>(ATTEND_EACH(r) { row(sum[r], x.c + r * x.c_stride); });
    }
    // What will be added to has not been seen since the group before: asked for, it arrives while
    // the products are computed.
    template <int kRows, int kVectors>
    requires(TilesOf<V>::kAsksSums) ATTEND_INLINE void ask(const Operands<V>& x) const {
      static_assert(V::kLanes * sizeof(Sum) == 64, "a vector is a line");
      if (!add) return;
      unrolled<kRows>(ATTEND_EACH(r) {
        unrolled<kVectors>(ATTEND_EACH(n) { prefetch(x.c + r * x.c_stride + n * V::kLanes); });
      });
    }
    template <int kVectors>
    ATTEND_INLINE void row(const V (&sum)[kVectors], Sum* to) const {
      const V by = V::set(factor), zero = V::set(0);
      unrolled<kVectors>(ATTEND_EACH(n) {
        Sum* const at = to + n * V::kLanes;
        (add ? V::load(at) + sum[n] : (sum[n] + zero) * by).store(at);
      });
    }
  };

  // One sequence's f32 sums lie side by side, key by key.
  bool plain() const noexcept { return !paged(p) && !narrow(p); }

  std::int64_t stored_keys() const noexcept {
    return paged(p) ? saturating_count(p.pages, p.page_size) : p.k_length;
  }

  bool may_be_direct() const noexcept {
    return !kMatrix<V> && plain() && !shared_ && is_contiguous_row<Sum>(wanted_.to) &&
           count_ == width_ && !p.blocks &&
           static_cast<double>(static_cast<Sum>(wanted_.scale)) == wanted_.scale &&
           group_.begin == 0 && group_.end == scores_.sequence.k_stored;
  }

  // The group's rows as operand b: as they lie, or [panel][row][kPanel], 0 behind the last feature.
  void pack() noexcept {
    const bool ready = is_contiguous_row<Operand>(wanted_.rows);
    const GradientTile<V>& first = group_.tiles[0];
    if (ready && p.group() == 1 && width_ == count_ && group_.rows > 0 && group_.rows <= kFew) {
      ATTEND_PATH(V, "dk and dv, rows as they lie");
      panel_stride_ = kPanel;
      row_stride_ = wanted_.rows.stride[2];
      b_ = reinterpret_cast<const Operand*>(wanted_.rows.data) +
           query_row(p, wanted_.rows, scores_.sequence, first.h[0], first.i[0]);
      return;
    }
    panel_stride_ = TileGroup::kRows * kPanel;
    row_stride_ = kPanel;
    b_ = panels_;
    int r = 0;
    for (int t = 0; t < group_.used; ++t) {
      const GradientTile<V>& tile = group_.tiles[t];
      for (int n = 0; n < tile.rows; ++n, ++r) {
        const std::int64_t at = query_row(p, wanted_.rows, scores_.sequence, tile.h[n], tile.i[n]);
        const Operand* from = row_;
        if (ready) from = reinterpret_cast<const Operand*>(wanted_.rows.data) + at;
        else convert_row<V>(wanted_.rows, at, count_, row_);
        row_to_strips<V>(from, count_, r, panels_, panel_stride_);
      }
    }
  }
  const Operand* row(int n, std::int64_t x) const noexcept {
    return b_ + x / kPanel * panel_stride_ + n * row_stride_ + x % kPanel;
  }

  // The same as a matrix instruction reads values, 0 behind the last row.
  void pack_pairs() noexcept {
    const bool ready = is_contiguous_row<Operand>(wanted_.rows);
    for (std::int64_t first = 0; first < packed_rows(); first += kGroup)
      Matrix<V>::values(
          [&](int n) -> const Operand* {
            const auto r = static_cast<int>(first) + n;
            if (r >= group_.rows) return nullptr;
            const GradientTile<V>& tile = group_.tiles[r / kMost];
            const std::int64_t at =
                query_row(p, wanted_.rows, scores_.sequence, tile.h[r % kMost], tile.i[r % kMost]);
            if (ready) return reinterpret_cast<const Operand*>(wanted_.rows.data) + at;
            Operand* row = row_ + n % kRowsTogether * width_;
            convert_row<V>(wanted_.rows, at, count_, row);
            return row;
          },
          count_, panels_ + Matrix<V>::values_at(first, width_));
  }
  // Of whole tiles, and of whole groups.
  std::int64_t packed_rows() const noexcept {
    return (group_.used * kMost + kGroup - 1) / kGroup * kGroup;
  }

  // Where the sums of key j are added up, and how far the next key's are.
  Sum* sums_of(std::int64_t j) const noexcept {
    if (direct_) return reinterpret_cast<Sum*>(wanted_.to.data) + place_of(j);
    return sums_ + (narrow(p) ? j - group_.chunk.from : j) * width_;
  }
  std::int64_t stride() const noexcept { return direct_ ? wanted_.to.stride[2] : width_; }
  Sum factor() const noexcept { return direct_ ? static_cast<Sum>(wanted_.scale) : Sum{1}; }

  // Panel by panel of the features, or, where pairs are turned first, by steps of the keys.
  void products(const Sum* pairs) const noexcept {
    const AddOrScale finish{.add = !stores_, .factor = factor()};
    const std::int64_t each = TilesOf<V>::kPanels ? width_ : kPanel;
    for (std::int64_t x = 0; x < width_; x += each) {
      for (int r = 0; r < group_.spans->size; ++r) {
        const KeySpan& span = group_.spans->span[r];
        for (int y = 0; y < span.count; y += kStep) {
          const int count = span.count - y < kStep ? span.count - y : kStep;
          int from = 0, to = group_.used;  // tiles that may see these keys
          while (from < to && !sees(from, span.key + y, count)) ++from;
          while (from < to && !sees(to - 1, span.key + y, count)) --to;
          if (from == to && !stores_) continue;
          const int end = to * kMost < group_.rows ? to * kMost : group_.rows;
          const int rows = from == to ? 0 : end - from * kMost;
          const Sum* some = pairs + (span.at + y) * group_.stride + from * kMost;
          Operands<V> operands{.a = as_operand(some, count, rows),
                               .a_stride = TilesOf<V>::kPanels ? kStep : group_.stride,
                               .b = row(from * kMost, x),
                               .b_stride = row_stride_,
                               .c = sums_of(span.key + y) + x,
                               .c_stride = stride(),
                               .depth = rows};
          if constexpr (TilesOf<V>::kPanels) panel_products(operands, count, finish);
          else panel_product<Layout::streamed>(operands, count, width_ - x, finish);
        }
      }
    }
  }

  // By a matrix instruction, a group of keys after the other.
  void group_products(const Sum* pairs, bool careful) const noexcept {
    constexpr std::int64_t kStride = TileGroup::kRows;
    for (int r = 0; r < group_.spans->size; ++r) {
      const KeySpan& span = group_.spans->span[r];
      for (int y = 0; y < span.count; y += kGroup) {
        int from = 0, to = group_.used;
        while (from < to && !sees(from, span.key + y, kGroup)) ++from;
        while (from < to && !sees(to - 1, span.key + y, kGroup)) --to;
        if (from == to && !stores_) continue;
        const std::int64_t at = (span.at + y) * group_.stride,
                           left = group_.chunk.to - span.key - y;
        // Behind the last key there is room, but not in the shared memory.
        const int keys = left >= kGroup || (!shared_ && left > kGroup / 2) ? kGroup
                         : !shared_                                        ? kGroup / 2
                                                                           : static_cast<int>(left);
        const int end = to * kMost < group_.rows ? to * kMost : group_.rows;
        const auto units = GradientMatrix<V>::narrow(
            GradientPairs<V>{.at = pairs + at + group_.column(from * kMost),
                             .stride = group_.stride,
                             .next = group_.column(kMost),
                             .rows = from == to ? 0 : end - from * kMost,
                             .keys = keys,
                             .marks = careful && pairs == group_.p},
            turned_, kStride);
        const Operand* b = panels_ + Matrix<V>::values_at(from * kMost, width_);
        Sum* c = sums_of(span.key + y);
        if (!careful)
          GradientMatrix<V>::products(turned_, kStride, b, to - from, width_, c, stride(), keys,
                                      units, !stores_);
        for (int key = 0; careful && key < keys; ++key)
          GradientMatrix<V>::products_of_key(
              turned_, kStride, key, b, to - from, width_,
              [&](int t, int n) {
                return n < group_.tiles[from + t].rows &&
                       group_.p[at + key * group_.stride + group_.column((from + t) * kMost + n)] ==
                           TileGroup::kHidden;
              },
              c + key * stride(), units, !stores_);
      }
    }
  }

  // The pairs of `count` keys and some rows as they lie or, since products by lane are at their
  // best across, turned, for all features.
  const Operand* as_operand(const Sum* pairs, int count, int rows) const noexcept {
    if constexpr (TilesOf<V>::kPanels) {
      const Sum* keys[kStep];
      for (int n = 0; n < count; ++n) keys[n] = pairs + n * group_.stride;
      rows_to_operand<V>(keys, count, rows, turned_, kStep);
      return turned_;
    } else {
      return as_they_lie<V>(pairs);
    }
  }

  template <Layout kLayout>
  static void panel_product(const Operands<V>& x, int count, std::int64_t width,
                            AddOrScale finish) noexcept {
    if (width <= V::kLanes) product<V, 1, kLayout>(x, count, finish);
    else product<V, kFeatureVectors<V>, kLayout>(x, count, finish);
  }

  void panel_products(Operands<V> x, int count, AddOrScale finish) const noexcept {
    for (std::int64_t at = 0; at < width_; at += kPanel) {
      panel_product<Layout::across>(x, count, width_ - at, finish);
      x.b += panel_stride_;
      x.c += kPanel;
    }
  }

  bool sees(int t, std::int64_t key, int count) const noexcept {
    return group_.tiles[t].begin < key + count && group_.tiles[t].end > key;
  }

  void add_careful(const Sum* pairs) noexcept {
    for (int r = 0; r < group_.spans->size; ++r) {
      const KeySpan& span = group_.spans->span[r];
      for (int y = 0; y < span.count; ++y) {
        const std::int64_t pair = (span.at + y) * group_.stride;
        for (std::int64_t x = 0; x < width_; x += V::kLanes) {
          V sum = V::set(0);
          for (int n = 0; n < group_.rows; ++n)
            if (group_.p[pair + n] != TileGroup::kHidden)
              sum = fma(V::set(pairs[pair + n]), load_elements<V>(row(n, x)), sum);
          Sum* to = sums_of(span.key + y) + x;
          (stores_ ? (sum + V::set(0)) * V::set(factor()) : V::load(to) + sum).store(to);
        }
      }
    }
  }

  // The f32 sums of the keys [from, to) join the f64 sums.
  void flush(std::int64_t from, std::int64_t to) noexcept {
    for (std::int64_t j = from; j < to; ++j) {
      Sum* sums = sums_ + (narrow(p) ? j - from : j) * width_;
      double* total = total_ + stored_key(j) * count_;
      if (!flushed_) clear(total, count_);
      add_wide<V>(sums, count_, total);
      if (narrow(p)) clear(sums, width_);
    }
    flushed_ = empty_ = true;
  }

  std::int64_t stored_key(std::int64_t j) const noexcept {
    if (!paged(p)) return j;
    ATTEND_PATH(V, "dk and dv of pages");
    return page_of(p, call_, scores_.sequence, j) * p.page_size + j % p.page_size;
  }

  std::int64_t place_of(std::int64_t j) const noexcept {
    return paged(p) ? wanted_.to.offset(j / p.page_size, scores_.kv_head, j % p.page_size)
                    : key_row(p, call_, wanted_.to, scores_.sequence, scores_.kv_head, j);
  }

  const BackwardProblem& p;
  const BackwardCall& call_;
  BackwardScores<V>& scores_;
  TileGroup& group_;
  const Wanted wanted_;
  const std::int64_t count_, width_;  // features, and as whole vectors
  const std::int64_t summed_;         // rows that the f32 sums take
  Operand* panels_ = nullptr;         // [panel][group rows][kPanel]
  const Operand* b_ = nullptr;        // the rows of the group, there or as they lie
  std::int64_t panel_stride_ = 0, row_stride_ = 0;
  Operand* row_ = nullptr;     // [width], a row that does not lie ready
  Operand* turned_ = nullptr;  // [group rows][kStep], pairs the other way round; or rounded
  Sum *own_ = nullptr, *sums_ = nullptr;  // [keys][width]
  double* total_ = nullptr;               // [stored keys][features]
  bool shared_ = false;                   // the sums are left in begin()'s place
  bool flushed_ = false;                  // the f64 sums have begun
  bool empty_ = false;                    // the f64 sums have all that the f32 sums had
  bool direct_ = false;                   // the sums are the gradient
  bool stores_ = false;                   // those of the group at hand are stored, not added
};

}  // namespace
}  // namespace attend
