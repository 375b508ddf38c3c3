// The weights of multi-head attention: by name, and as one set of matrices a head. Head h owns rows
// h * d ... of W^Q, W^K and W^V, and columns h * d_v ... of W^O.
#include "core/reporting.h"
#include "core/text.h"
#include "layer/check.h"
#include "layer/lists.h"
#include "layer/multi_head_attention.h"

#include <cstring>

namespace attend {
namespace {

using multi_head::fail;

// Rows (dim 0) or columns (dim 1) number h of `size`, of a matrix or a bias that may be missing.
Tensor part(const Tensor& whole, int dim, std::int64_t h, std::int64_t size) {
  return whole ? Tensor::copy_of(whole.view().slice(dim, h * size, (h + 1) * size)) : Tensor();
}

// Writes it back. What is missing stays as it is: zeros.
void put(const ConstTensorView& from, Tensor& whole, int dim, std::int64_t h, std::int64_t size) {
  if (!from) return;
  const TensorView to = whole.view().slice(dim, h * size, (h + 1) * size);
  const std::int64_t bytes = size_of(to.dtype());
  const std::int64_t rows = to.size(0), columns = to.rank() == 2 ? to.size(1) : 1;
  const Tensor source = Tensor::copy_of(from);
  for (std::int64_t r = 0; r < rows; ++r)
    std::memcpy(static_cast<std::byte*>(to.data()) + r * to.strides()[0] * bytes,
                static_cast<const std::byte*>(source.view().data()) + r * columns * bytes,
                static_cast<std::size_t>(columns * bytes));
}

bool same(const Tensor& a, const Tensor& b) {
  if (!a || !b) return !a && !b;
  return a.shape() == b.shape() && a.dtype() == b.dtype() &&
         std::memcmp(a.view().data(), b.view().data(),
                     static_cast<std::size_t>(a.count() * size_of(a.dtype()))) == 0;
}

void check_matrix(std::int64_t h, const char* name, const Tensor& found, const Shape& shape,
                  DType type) {
  check_shape("multi_head_attention", text("head ", h, ": ", name).c_str(), found, type, shape);
}

using HeadWeights = MultiHeadAttention::HeadWeights;

void check_heads(const MultiHeadAttentionOptions& o, const std::vector<HeadWeights>& heads) {
  if (static_cast<std::int64_t>(heads.size()) != o.heads)
    fail("there are ", heads.size(), " sets of matrices for ", o.heads, " heads");
  const std::int64_t group = o.heads / o.key_heads;
  for (std::int64_t h = 0; h < o.heads; ++h) {
    const HeadWeights& head = heads[static_cast<std::size_t>(h)];
    const HeadWeights& first = heads[static_cast<std::size_t>(h / group * group)];
    check_matrix(h, "q", head.q, {o.d_k, o.model_dim}, o.type);
    check_matrix(h, "k", head.k, {o.d_k, o.key_dim}, o.type);
    check_matrix(h, "v", head.v, {o.d_v, o.value_dim}, o.type);
    if (o.output_projection) check_matrix(h, "o", head.o, {o.model_dim, o.d_v}, o.type);
    if (head.o && !o.output_projection)
      fail("head ", h, " has an o, but output_projection is false");
    if (head.q_bias) check_matrix(h, "q_bias", head.q_bias, {o.d_k}, o.type);
    if (head.k_bias) check_matrix(h, "k_bias", head.k_bias, {o.d_k}, o.type);
    if (head.v_bias) check_matrix(h, "v_bias", head.v_bias, {o.d_v}, o.type);
    if (!same(head.k, first.k) || !same(head.v, first.v) || !same(head.k_bias, first.k_bias) ||
        !same(head.v_bias, first.v_bias))
      fail("heads ", h / group * group, " and ", h, " share a key head, but their k or v differ");
  }
}

}  // namespace

template <class List, class Layer>
List MultiHeadAttention::list_of(Layer& layer) {
  List list;
  for (auto& [prefix, linear] : {std::pair{"q.", &layer.q_}, std::pair{"k.", &layer.k_},
                                 std::pair{"v.", &layer.v_}, std::pair{"o.", &layer.o_}})
    if (*linear) attend::append(list, prefix, parameters_of(*linear));
  return list;
}

std::vector<NamedView> MultiHeadAttention::parameters() const {
  return reporting("multi_head_attention", [&]() -> std::vector<NamedView> {
    return list_of<std::vector<NamedView>>(*this);
  });
}

std::vector<Parameter> MultiHeadAttention::writable_parameters() {
  return reporting("multi_head_attention", [&]() -> std::vector<Parameter> {
    return list_of<std::vector<Parameter>>(*this);
  });
}

std::vector<HeadWeights> MultiHeadAttention::split() const {
  return reporting("multi_head_attention", [&]() -> std::vector<HeadWeights> {
    check_made("multi_head_attention", static_cast<bool>(*this));
    check_on_host("multi_head_attention", "split()", device());
    if (quantized())
      throw Unsupported(
          "multi_head_attention: split: the weights are i8, of quantize(); heads of their own need "
          "weights of f64, f32, bf16 or f16: split the layer before");
    const MultiHeadAttentionOptions& o = options_;
    std::vector<HeadWeights> heads;
    for (std::int64_t h = 0; h < o.heads; ++h) {
      const std::int64_t key_head = h / (o.heads / o.key_heads);
      heads.push_back({.q = part(q_.weight(), 0, h, o.d_k),
                       .k = part(k_.weight(), 0, key_head, o.d_k),
                       .v = part(v_.weight(), 0, key_head, o.d_v),
                       .o = o_ ? part(o_.weight(), 1, h, o.d_v) : Tensor(),
                       .q_bias = part(q_.bias(), 0, h, o.d_k),
                       .k_bias = part(k_.bias(), 0, key_head, o.d_k),
                       .v_bias = part(v_.bias(), 0, key_head, o.d_v)});
    }
    return heads;
  });
}

MultiHeadAttention MultiHeadAttention::join(const MultiHeadAttentionOptions& options,
                                            const std::vector<HeadWeights>& heads,
                                            const Tensor& o_bias) {
  return reporting("multi_head_attention", [&]() -> MultiHeadAttention {
    const MultiHeadAttentionOptions o = filled_in(options);
    check_heads(o, heads);
    const auto any = [&](Tensor HeadWeights::*bias) {
      for (const HeadWeights& head : heads)
        if (head.*bias) return true;
      return false;
    };
    const auto zeros = [&](bool wanted, const Shape& shape) {
      return wanted ? Tensor(shape, o.type) : Tensor();
    };
    Tensor q({o.heads * o.d_k, o.model_dim}, o.type), k({o.key_heads * o.d_k, o.key_dim}, o.type),
        v({o.key_heads * o.d_v, o.value_dim}, o.type);
    Tensor q_bias = zeros(any(&HeadWeights::q_bias), {o.heads * o.d_k});
    Tensor k_bias = zeros(any(&HeadWeights::k_bias), {o.key_heads * o.d_k});
    Tensor v_bias = zeros(any(&HeadWeights::v_bias), {o.key_heads * o.d_v});
    Tensor w_o = zeros(o.output_projection, {o.model_dim, o.heads * o.d_v});
    for (std::int64_t h = 0; h < o.heads; ++h) {
      const HeadWeights& head = heads[static_cast<std::size_t>(h)];
      const std::int64_t key_head = h / (o.heads / o.key_heads);
      put(head.q, q, 0, h, o.d_k);
      put(head.k, k, 0, key_head, o.d_k);
      put(head.v, v, 0, key_head, o.d_v);
      put(head.q_bias, q_bias, 0, h, o.d_k);
      put(head.k_bias, k_bias, 0, key_head, o.d_k);
      put(head.v_bias, v_bias, 0, key_head, o.d_v);
      if (w_o) put(head.o, w_o, 1, h, o.d_v);
    }
    if (o_bias && !w_o) fail("o_bias is given, but there is no output projection");
    const GivenWeights ours{.unchanged = true};
    return MultiHeadAttention(o, Linear(std::move(q), std::move(q_bias), ours),
                              Linear(std::move(k), std::move(k_bias), ours),
                              Linear(std::move(v), std::move(v_bias), ours),
                              w_o ? Linear(std::move(w_o), o_bias, ours) : Linear());
  });
}

}  // namespace attend
