// Rules for inspect() and weights_of(). k stands in for v: no rule about v can be broken then.
#include "api/checker.h"

namespace attend {
namespace {

constexpr std::int64_t kMostTopKeys = 1024;

// The smallest power of two that cuts `length` into at most `most` tiles.
std::int64_t tile_size(std::int64_t length, std::int64_t most) {
  std::int64_t size = 1;
  while (length / size + (length % size != 0) > most) size *= 2;
  return size;
}

}  // namespace

void Checker::weights_only() {
  p_.dv = 0;
  p_.drop_below = 0;  // weights are before dropout
  call_.v = {};
  call_.draws = {};
}

void Checker::inspect(const InspectOptions& options) {
  weights_only();
  p_.top_k = options.top_k;
  if (p_.top_k < 0 || p_.top_k > kMostTopKeys)
    fail("top_k is ", p_.top_k, "; it must be from 0 to ", kMostTopKeys);
  p_.key_mass = options.key_mass;
  if (options.tile_rows < 0 || options.tile_columns < 0 ||
      (options.tile_rows == 0) != (options.tile_columns == 0))
    fail("tile_rows is ", options.tile_rows, " and tile_columns ", options.tile_columns,
         "; both must be above 0, or both 0 for no map");
  if (options.tile_rows > 0) {
    p_.tile_queries = tile_size(p_.q_length, options.tile_rows);
    p_.tile_keys = tile_size(p_.k_length, options.tile_columns);
    const Shape map{p_.batch, p_.heads, p_.map_rows(), p_.map_columns()};
    if (product_of(map) > kMaxElements)
      fail("the map ", map, " has sizes that multiply to more than 2^60");
  }
  p_.metrics = options.metrics;
  if (options.local_width < 0)
    fail("local_width is ", options.local_width, "; it must be at least 0");
  if (p_.metrics) p_.local_width = options.local_width;
  if (options.tokens) tokens(options.tokens);
  p_.lse_type = p_.type == DType::f64 ? DType::f64 : DType::f32;
}

void Checker::tokens(const ConstTensorView& view) {
  call_.tokens = read("tokens", view);
  type_is("tokens", view.dtype(), {DType::i32, DType::i64});
  const bool packed_keys = p_.keys == KeyAddressing::packed;
  const std::int64_t keys = packed_keys ? read_[1].view.size(2) : p_.k_length;
  const Shape all{keys}, each{packed_keys ? 1 : p_.batch, keys};
  if (view.shape() != all && view.shape() != each)
    fail("tokens is ", view.shape(), "; it must be ", all, " or ", each, ", one for each key");
  const auto strides = view.strides();
  call_.tokens.stride = {view.rank() == 2 ? strides[0] : 0, 0, strides[view.rank() - 1], 0};
  p_.tokens = p_.metrics;
}

void Checker::window(const ConstTensorView& lse, const WeightsWindow& w) {
  weights_only();
  const ConstTensorView q = read_.front().view;
  call_.lse = read("lse", lse);
  shape_is("lse", lse, {q.size(0), q.size(1), q.size(2)});
  type_is_statistic("lse", lse.dtype());
  call_.lse.stride = {lse.strides()[0], lse.strides()[1], lse.strides()[2], 0};
  p_.lse_type = lse.dtype();
  const auto within = [&](const char* name, std::int64_t from, std::int64_t count,
                          std::int64_t most) {
    if (from < 0 || count < 0 || from > most || count > most - from)
      fail("the window has ", count, " ", name, " from ", from, " on; there are ", most);
  };
  within("batch elements", w.batch, 1, p_.batch);
  within("heads", w.head, 1, p_.heads);
  const Sequence sequence =
      p_.device == Device{} ? sequence_of(p_, call_, w.batch) : Sequence{.q_length = p_.q_length};
  within("queries", w.query, w.queries, sequence.q_length);
  within("keys", w.key, w.keys, p_.keys == KeyAddressing::packed ? sequence.k_stored : p_.k_length);
  p_.window_queries = w.queries;
  p_.window_keys = w.keys;
  call_.window = {w.batch, w.head, w.query, w.key};
}

Request check(const InspectArguments& a) {
  Request request;
  request.problem.operation = Operation::inspect;
  Checker checker("inspect", request);
  checker.inputs(a.q, a.k, a.k, a.options);
  checker.options(a.options);
  checker.inspect(a.inspect);
  return request;
}

Request check(const WindowArguments& a) {
  Request request;
  request.problem.operation = Operation::weights;
  Checker checker("weights_of", request);
  checker.inputs(a.q, a.k, a.k, a.options);
  checker.options(a.options);
  checker.window(a.lse, a.window);
  return request;
}

}  // namespace attend
