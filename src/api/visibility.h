// Which rows take part in an attention at all, by its options alone. A layer asks it about rows
// that hold NaN or infinity: what nobody sees must not reach the gradients of its weights.
#pragma once

#include <attend/options.h>

#include <memory>

namespace attend {

class Visibility {
 public:
  // q [batch, heads, Tq, d], k and v likewise, or packed: as attention() takes them, and it throws
  // as that does. Only shapes are used, and what the options show.
  Visibility(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
             const AttentionOptions& options);
  ~Visibility();
  Visibility(const Visibility&) = delete;
  Visibility& operator=(const Visibility&) = delete;

  // Of row `row` of q[b] or k[b], packed of all sequences together. Takes O(heads * keys), or
  // O(heads * queries), and mostly much less.
  bool query_sees_a_key(std::int64_t b, std::int64_t row) const noexcept;
  bool key_is_seen(std::int64_t b, std::int64_t row) const noexcept;

 private:
  struct State;
  std::unique_ptr<const State> state_;
};

}  // namespace attend
