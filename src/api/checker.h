// The rules for arguments, one class in parts: what holds for any tensor (checker.cpp), for
// q, k and v and where they live (check_inputs.cpp), for the options (check_options.cpp). What is
// written, and the way from a whole call to a Request, is in check.cpp; of partial results, in
// check_parts.cpp; of inspect, in check_inspect.cpp.
#pragma once

#include "api/check.h"
#include "core/text.h"

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace attend {

inline constexpr std::int64_t kMaxElements = std::int64_t{1} << 60;  // sums of positions fit

// A tensor and what the caller knows it by.
struct Named {
  std::string name;
  ConstTensorView view;
};

// Rules for any tensors: there, of this shape and type, on one device, apart from each other.
class TensorChecker {
 protected:
  explicit TensorChecker(std::string_view function) : function_(function) {
    read_.reserve(4);  // q, k, v and one more
  }

  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    throw InvalidArgument(text(function_, ": ", parts...));
  }

  Strided sound(std::string_view name, const ConstTensorView& view);
  void rank_is_4(std::string_view name, const ConstTensorView& view, std::string_view form) const;
  void shape_is(std::string_view name, const ConstTensorView& view, const Shape& shape) const;
  void type_is(std::string_view name, DType found, std::initializer_list<DType> allowed) const;
  void no_overlap() const;

  Strided written(std::string_view name, const TensorView& view) {
    written_.push_back({std::string(name), view});
    return sound(name, view);
  }
  Strided read(std::string_view name, const ConstTensorView& view) {
    read_.push_back({std::string(name), view});
    return sound(name, view);
  }

  std::string_view function_;
  Device device_;
  std::vector<Named> written_, read_;
};

// Of operations on q and k: rules that they share fill what their problems share, and those of one
// operation the rest of its request.
class Checker : TensorChecker {
 public:
  enum class Positions { by_options, always };  // of queries and keys are compared
  Checker(std::string_view function, Problem& problem, Call& call,
          Positions compared = Positions::by_options)
      : TensorChecker(function), p_(problem), call_(call),
        compares_positions_(compared == Positions::always) {}

  void inputs(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
              const AttentionOptions& options);
  // Of operations without values: k stands in for v, so that no rule about v can be broken.
  void inputs(const ConstTensorView& q, const ConstTensorView& k, const AttentionOptions& options) {
    has_values_ = false;
    inputs(q, k, k, options);
  }
  void options(const AttentionOptions& options);
  // What masks, biases, weights and scores have: [batch, heads, queries, keys], of packed sequences
  // max_q and max_k.
  Shape square() const { return {p_.batch, p_.heads, most_q_, most_k_}; }
  void outputs(const TensorView& out, const AttentionOutputs& outputs, Request<Forward>& request);
  void backward(const BackwardArguments& arguments, Request<Backward>& request);
  void partial(const TensorView& state, std::vector<Part>& parts, Request<Forward>& request);
  void states(const StatesArguments& arguments, std::vector<Part>& parts,
              Request<Forward>& request);
  void inspect(const InspectOptions& options, Request<Inspect>& request);
  void window(const ConstTensorView& lse, const WeightsWindow& window, Request<Weights>& request);

 private:
  // ---- One tensor ----
  void type_is_tensors_or_wider(std::string_view name, DType found) const;
  void type_is_statistic(std::string_view name, DType found) const;
  Strided per_head(std::string_view name, const ConstTensorView& view);
  Strided integers(std::string_view name, const ConstTensorView& view, std::int64_t count);
  Strided broadcast(std::string_view name, const ConstTensorView& view, bool keys_may_be_fewer,
                    const Shape& full, std::string_view of);

  // ---- Groups of options ----
  void types(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
             const AttentionOptions& options);
  void packed(const ConstTensorView& q, const ConstTensorView& k, const AttentionOptions& options);
  std::int64_t starts(std::string_view name, const Strided& t, std::string_view of,
                      std::int64_t total) const;
  void paged(const ConstTensorView& k, const ConstTensorView& v, const AttentionOptions& options);
  void key_lengths(const AttentionOptions& options);
  void pages(const AttentionOptions& options) const;
  void query_offset(const QueryOffset& offset);
  void key_offset(const AttentionOptions& options);
  void mask(const AttentionOptions& options);
  void bias(const AttentionOptions& options);
  void blocks(const Blocks& blocks);
  void dropout(const Dropout& dropout, const std::optional<std::int64_t>& key_offset);
  void weight_heads(std::vector<std::int64_t> heads) const;
  void weights_only();
  void kinds_of_states(const std::vector<Part>& parts);
  template <class... Name>
  int state_kind(const Strided& t, const Shape& row, const Name&... name) const;
  Strided read_anywhere(std::string_view name, const ConstTensorView& view);
  Strided tokens(const ConstTensorView& view);

  Problem& p_;
  Call& call_;
  std::int64_t most_q_ = 0, most_k_ = 0;
  const bool compares_positions_;  // whatever the options
  bool has_values_ = true;
};

// The sizes as q has them: packed, batch is 1 and queries are all in one row.
inline Shape row_shape(const ConstTensorView& q) { return {q.size(0), q.size(1), q.size(2)}; }
inline Shape row_shape(const ConstTensorView& q, std::int64_t last) {
  return {q.size(0), q.size(1), q.size(2), last};
}

// A tensor [batch, heads, queries]: one number a row.
inline Strided per_row(Strided t, const ConstTensorView& view) {
  t.stride = {view.strides()[0], view.strides()[1], view.strides()[2], 0};
  return t;
}

// The product of the sizes other than 0; the largest integer if it overflows.
std::int64_t product_of(const Shape& shape) noexcept;

// Element n of a list of integers.
inline std::int64_t entry(const Strided& t, std::int64_t n) noexcept {
  return load_integer(t, t.offset(n, 0, 0));
}

}  // namespace attend
