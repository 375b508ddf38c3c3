// Rules for inspect() and weights_of(), which have no values.
#include "api/checker.h"

namespace attend {
namespace {

constexpr std::int64_t kMostTopKeys = 1024;

void within(const char* name, std::int64_t from, std::int64_t count, std::int64_t most) {
  if (from < 0 || count < 0 || from > most || count > most - from)
    throw InvalidArgument(text("weights_of: the window has ", count, " ", name, " from ", from,
                               " on; there are ", most));
}

// The smallest power of two that cuts `length` into at most `most` tiles.
std::int64_t tile_size(std::int64_t length, std::int64_t most) {
  std::int64_t size = 1;
  while (length / size + (length % size != 0) > most) size *= 2;
  return size;
}

}  // namespace

void check_window(const WeightsProblem& p, const Sequence& sequence, const WeightsWindow& w) {
  within("queries", w.query, w.queries, sequence.q_length);
  within("keys", w.key, w.keys, listed_keys(p, sequence));
}

void Checker::weights_only() {
  p_.dv = 0;
  p_.own_v_type = p_.v_scales = false;
  p_.v_type = DType::f32;
  p_.drop_below = 0;  // weights are before dropout
  call_.v = call_.v_scales = {};
  call_.draws = {};
}

void Checker::inspect(const InspectOptions& options, Request<Inspect>& request) {
  InspectProblem& p = request.problem;
  weights_only();
  p.top_k = options.top_k;
  if (p.top_k < 0 || p.top_k > kMostTopKeys)
    fail("top_k is ", p.top_k, "; it must be from 0 to ", kMostTopKeys);
  p.key_mass = options.key_mass;
  if (options.tile_rows < 0 || options.tile_columns < 0 ||
      (options.tile_rows == 0) != (options.tile_columns == 0))
    fail("tile_rows is ", options.tile_rows, " and tile_columns ", options.tile_columns,
         "; both must be above 0, or both 0 for no map");
  if (options.tile_rows > 0) {
    p.tile_queries = tile_size(p.q_length, options.tile_rows);
    p.tile_keys = tile_size(p.k_length, options.tile_columns);
    const Shape map{p.batch, p.heads, p.map_rows(), p.map_columns()};
    if (product_of(map) > kMaxElements)
      fail("the map ", map, " has sizes that multiply to more than 2^60");
  }
  p.metrics = options.metrics;
  if (options.local_width < 0)
    fail("local_width is ", options.local_width, "; it must be at least 0");
  if (p.metrics) p.local_width = options.local_width;
  if (options.tokens) request.call.tokens = tokens(options.tokens);
  p.tokens = p.metrics && options.tokens;
  p.lse_type = statistic_type(p.type);
}

// What inspect() is told or has given may be in memory of the host, whatever q and k are in.
Strided Checker::read_anywhere(std::string_view name, const ConstTensorView& view) {
  const Device device = device_;
  if (view.device() == Device{}) device_ = Device{};
  const Strided t = read(name, view);
  device_ = device;
  return t;
}

Strided Checker::tokens(const ConstTensorView& view) {
  Strided tokens = read_anywhere("tokens", view);
  type_is("tokens", view.dtype(), {DType::i32, DType::i64});
  const bool packed_keys = p_.keys == KeyAddressing::packed;
  const std::int64_t keys = packed_keys ? read_[1].view.size(2) : p_.k_length;
  const Shape all{keys}, each{packed_keys ? 1 : p_.batch, keys};
  if (view.shape() != all && view.shape() != each)
    fail("tokens is ", view.shape(), "; it must be ", all, " or ", each, ", one for each key");
  const auto strides = view.strides();
  tokens.stride = {view.rank() == 2 ? strides[0] : 0, 0, strides[view.rank() - 1], 0};
  return tokens;
}

void Checker::window(const ConstTensorView& lse, const WeightsWindow& w,
                     Request<Weights>& request) {
  auto& p = request.problem;
  auto& call = request.call;
  weights_only();
  const ConstTensorView q = read_.front().view;
  call.lse = read_anywhere("lse", lse);
  shape_is("lse", lse, {q.size(0), q.size(1), q.size(2)});
  type_is_statistic("lse", lse.dtype());
  call.lse.stride = {lse.strides()[0], lse.strides()[1], lse.strides()[2], 0};
  p.lse_type = lse.dtype();
  within("batch elements", w.batch, 1, p.batch);
  within("heads", w.head, 1, p.heads);
  // On a device, how long the sequence is itself is found out later.
  check_window(p,
               p.device == Device{} ? sequence_of(p, call, w.batch)
                                    : Sequence{.q_length = p.q_length, .k_stored = p.k_length},
               w);
  p.window_queries = w.queries;
  p.window_keys = w.keys;
  call.window = {w.batch, w.head, w.query, w.key};
}

Request<Inspect> check(const InspectArguments& a) {
  Request<Inspect> request;
  Checker checker("inspect", request.problem, request.call, Checker::Positions::always);
  checker.inputs(a.q, a.k, a.options);
  checker.options(a.options);
  checker.inspect(a.inspect, request);
  return request;
}

Request<Weights> check(const WindowArguments& a) {
  Request<Weights> request;
  Checker checker("weights_of", request.problem, request.call);
  checker.inputs(a.q, a.k, a.options);
  checker.options(a.options);
  checker.window(a.lse, a.window, request);
  return request;
}

}  // namespace attend
