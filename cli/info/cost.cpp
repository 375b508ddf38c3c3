#include "cost.h"

#include "frame/usage_error.h"

#include <algorithm>
#include <string>

namespace attend::cli {
namespace {

// Whole numbers that notice when they outgrow 64 bits.
struct Whole {
  std::int64_t value = 0;
  Whole(std::int64_t v) : value(v) {}  // NOLINT: reads as a number
  friend Whole operator*(Whole a, Whole b) {
    std::int64_t product = 0;
    if (__builtin_mul_overflow(a.value, b.value, &product)) too_large();
    return product;
  }
  friend Whole operator+(Whole a, Whole b) {
    std::int64_t sum = 0;
    if (__builtin_add_overflow(a.value, b.value, &sum)) too_large();
    return sum;
  }
  [[noreturn]] static void too_large() { throw UsageError("the numbers do not fit into 64 bits"); }
};

void at_least_1(const char* name, std::int64_t value) {
  if (value < 1)
    throw UsageError(std::string(name) + " is " + std::to_string(value) +
                     "; it must be at least 1");
}

std::string divisors(std::int64_t n) {
  std::string list;
  for (std::int64_t d = 1; d <= std::min<std::int64_t>(n, 1 << 20); ++d)
    if (n % d == 0) list += " " + std::to_string(d);
  return list;
}

// Pairs (query, key) of one head: of causal attention, query i of n sees keys - n + i + 1 keys.
Whole pairs(const LayerSizes& s) {
  if (!s.causal) return Whole(s.queries) * s.keys;
  const std::int64_t rows = std::min(s.queries, s.keys);  // rows before them see nothing
  return Whole(rows) * (s.keys - rows) + (Whole(rows) * (rows + 1)).value / 2;
}

}  // namespace

LayerSizes filled_in(LayerSizes s) {
  at_least_1("model_dim", s.model_dim);
  at_least_1("heads", s.heads);
  if (s.d_k == 0 && s.model_dim % s.heads != 0)
    throw UsageError("model_dim " + std::to_string(s.model_dim) + " is not divisible by heads " +
                     std::to_string(s.heads) + "; give d_k, or one of" + divisors(s.model_dim));
  if (s.key_heads == 0) s.key_heads = s.heads;
  if (s.d_k == 0) s.d_k = s.model_dim / s.heads;
  if (s.d_v == 0) s.d_v = s.d_k;
  if (s.key_dim == 0) s.key_dim = s.model_dim;
  if (s.value_dim == 0) s.value_dim = s.key_dim;
  if (s.keys == 0) s.keys = s.queries;
  const std::pair<const char*, std::int64_t> sizes[] = {
      {"key_heads", s.key_heads}, {"d_k", s.d_k},       {"d_v", s.d_v},     {"key_dim", s.key_dim},
      {"value_dim", s.value_dim}, {"layers", s.layers}, {"batch", s.batch}, {"length", s.queries},
      {"key_length", s.keys}};
  for (const auto& [name, value] : sizes) at_least_1(name, value);
  if (s.heads % s.key_heads != 0)
    throw UsageError("heads " + std::to_string(s.heads) + " is not a multiple of key_heads " +
                     std::to_string(s.key_heads));
  return s;
}

Cost cost_of(const LayerSizes& s) {
  const Whole q = Whole(s.heads) * s.d_k, k = Whole(s.key_heads) * s.d_k,
              v = Whole(s.key_heads) * s.d_v, concat = Whole(s.heads) * s.d_v;
  const Whole out = s.output_projection ? s.model_dim : 0;
  const Whole layers = s.layers, batch = s.batch, bytes = size_of(s.type);
  const Whole of_query = q * s.model_dim + concat * out;             // weights that a query meets
  const Whole of_key = k * s.key_dim + v * s.value_dim;              // and a key
  const Whole a_pair = Whole(2) * s.heads * (Whole(s.d_k) + s.d_v);  // operations

  Cost cost;
  cost.weights = (layers * (of_query + of_key)).value;
  cost.biases = s.bias ? (layers * (q + k + v + out)).value : 0;
  cost.projection_flops = (layers * 2 * batch * (of_query * s.queries + of_key * s.keys)).value;
  cost.attention_flops = (layers * batch * pairs(s) * a_pair).value;
  // 2 n (of_query + of_key) = a_pair n^2, or half of the pairs
  cost.equal_length = 2 * static_cast<double>((of_query + of_key).value) /
                          static_cast<double>(a_pair.value) * (s.causal ? 2 : 1) -
                      (s.causal ? 1 : 0);
  cost.parameter_bytes = (bytes * (Whole(cost.weights) + cost.biases)).value;
  cost.activation_bytes =
      (bytes * batch *
       (Whole(s.queries) * (q + concat + s.model_dim + out) + Whole(s.keys) * (k + v)))
          .value;
  cost.cache_bytes = (bytes * layers * batch * s.keys * (k + v)).value;
  cost.matrix_bytes = (bytes * batch * s.heads * s.queries * s.keys).value;
  return cost;
}

}  // namespace attend::cli
