// Rules for partial results: (o, lse), which merge() joins, and partial states.
#include "api/checker.h"

#include "core/partial_state.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

namespace attend {
namespace {

// The largest relative error of a number rounded to the type.
double half_unit(DType type) { return type == DType::f64 ? 0x1p-53 : 0x1p-24; }

constexpr double kZero = 0;  // a query of one feature, of any type

template <class Use>
void for_rows(const Shape& shape, Use use) {
  for (std::int64_t b = 0; b < shape[0]; ++b)
    for (std::int64_t h = 0; h < shape[1]; ++h)
      for (std::int64_t i = 0; i < shape[2]; ++i) use(Shape{b, h, i});
}

}  // namespace

// ---- (o, lse) ----------------------------------------------------------------------------------

namespace {

class MergeChecker : TensorChecker {
 public:
  explicit MergeChecker(Request<Merge>& request)
      : TensorChecker("merge"), p_(request.problem), call_(request.call) {}
  void merge(const MergeArguments& arguments, std::vector<Part>& parts);

 private:
  void lse_holds_sums(const std::vector<Part>& parts) const;
  MergeProblem& p_;
  MergeCall& call_;
};

void MergeChecker::merge(const MergeArguments& a, std::vector<Part>& parts) {
  if (a.o.empty()) fail("there are no parts; at least one is needed");
  if (a.o.size() != a.lse.size())
    fail("there are ", a.o.size(), " o and ", a.lse.size(), " lse; each part needs one of each");
  p_.device = device_ = a.o.front().device();
  p_.parts = static_cast<std::int64_t>(a.o.size());
  for (std::size_t n = 0; n < a.o.size(); ++n) {
    const std::string o_name = text("o[", n, "]"), lse_name = text("lse[", n, "]");
    const Strided o = read(o_name, a.o[n]), lse = read(lse_name, a.lse[n]);
    rank_is_4(o_name, a.o[n], "[batch, heads, queries, dv]");
    type_is(o_name, a.o[n].dtype(), {DType::f64, DType::f32, DType::bf16, DType::f16});
    shape_is(o_name, a.o[n], a.o.front().shape());
    shape_is(lse_name, a.lse[n], row_shape(a.o.front()));
    type_is(lse_name, a.lse[n].dtype(), {DType::f32, DType::f64});
    parts.push_back({o, per_row(lse, a.lse[n])});
  }
  const Shape& shape = a.o.front().shape();
  p_.type = a.o.front().dtype();
  p_.batch = shape[0];
  p_.heads = shape[1];
  p_.q_length = shape[2];
  p_.dv = shape[3];
  call_.out = written("out", a.out);
  shape_is("out", a.out, shape);
  type_is("out", a.out.dtype(), {DType::f64, DType::f32, DType::bf16, DType::f16});
  p_.out_type = a.out.dtype();
  if ((p_.lse = static_cast<bool>(a.lse_out))) {
    call_.lse = written("lse_out", a.lse_out);
    shape_is("lse_out", a.lse_out, row_shape(a.o.front()));
    type_is("lse_out", a.lse_out.dtype(), {DType::f32, DType::f64});
    call_.lse = per_row(call_.lse, a.lse_out);
    p_.lse_type = a.lse_out.dtype();
  }
  call_.parts = parts.data();
  no_overlap();
  if (p_.device == Device{}) lse_holds_sums(parts);
}

// The weight of a part is exp(lse - the largest lse): off by a factor of 1 + |lse| * unit or so,
// where lse was rounded. With two parts or more that weigh something, this must stay small.
void MergeChecker::lse_holds_sums(const std::vector<Part>& parts) const {
  constexpr double kMostError = 0x1p-8, kNothing = 64;  // e^-64 is nothing even in f64
  for_rows({p_.batch, p_.heads, p_.q_length}, [&](const Shape& row) {
    const auto lse_of = [&](const Part& part) {
      return load(part.lse, part.lse.offset(row[0], row[1], row[2]));
    };
    std::size_t most = 0;
    for (std::size_t n = 1; n < parts.size(); ++n)
      if (lse_of(parts[n]) > lse_of(parts[most])) most = n;
    const double m = lse_of(parts[most]);
    if (!std::isfinite(m)) return;
    for (std::size_t n = 0; n < parts.size(); ++n) {
      const double unit = std::max(half_unit(parts[n].lse.type), half_unit(parts[most].lse.type));
      const double error = unit * std::abs(m);
      if (n != most && error > kMostError && m - lse_of(parts[n]) <= kNothing + 8 * error)
        fail("lse[", std::min(n, most), "] and lse[", std::max(n, most), "] are ",
             lse_of(parts[std::min(n, most)]), " and ", lse_of(parts[std::max(n, most)]), " at ",
             row,
             ", too large to say how the parts compare; join partial states instead "
             "(attention_partial, finish_partial)");
    }
  });
}

}  // namespace

Request<Merge> check(const MergeArguments& a, std::vector<Part>& parts) {
  Request<Merge> request;
  MergeChecker(request).merge(a, parts);
  return request;
}

// ---- Partial states ----------------------------------------------------------------------------

// The last column of a row, which must be what a kernel wrote there, or 0.
template <class... Name>
int Checker::state_kind(const Strided& t, const Shape& row, const Name&... name) const {
  const double found = load(t, t.offset(row[0], row[1], row[2], p_.dv + kStateColumns - 1));
  for (int kind = 0; kind < kStateKinds + kSinkCounted; ++kind)
    if (found == kind) return kind;
  fail(name..., " ends with ", found, " at ", row,
       "; it is no partial state (zeros are an empty one)");
}

void Checker::partial(const TensorView& state, std::vector<Part>& parts,
                      Request<Forward>& request) {
  auto& p = request.problem;
  auto& call = request.call;
  const ConstTensorView q = read_.front().view;
  call.state = written("state", state);
  shape_is("state", state, row_shape(q, p.dv + kStateColumns));
  type_is("state", state.dtype(), {DType::f64});
  no_overlap();
  p.state = true;
  p.parts = 1;
  p.out_type = p.type;
  parts.push_back({call.state, {}});
  call.parts = parts.data();
  if (p.device != Device{}) return;
  for_rows(row_shape(q), [&](const Shape& row) {
    const int kind = state_kind(call.state, row, "state");
    if (p.sinks && kind != 0 && kind < kSinkCounted)
      fail("sinks are given, and state has summed keys without them at ", row,
           "; sinks are counted with the first keys");
  });
}

// A forward call without keys that begins with the states.
void Checker::states(const StatesArguments& a, std::vector<Part>& parts,
                     Request<Forward>& request) {
  auto& p = request.problem;
  auto& call = request.call;
  if (a.states.empty()) fail("there are no states; at least one is needed");
  p.device = device_ = a.states.front().device();
  p.parts = static_cast<std::int64_t>(a.states.size());
  for (std::size_t n = 0; n < a.states.size(); ++n) {
    const std::string name = text("states[", n, "]");
    const Strided state = read(name, a.states[n]);
    rank_is_4(name, a.states[n], "[batch, heads, queries, dv + 4]");
    type_is(name, a.states[n].dtype(), {DType::f64});
    shape_is(name, a.states[n], a.states.front().shape());
    parts.push_back({state, {}});
  }
  const Shape& shape = a.states.front().shape();
  if (shape[3] <= kStateColumns)
    fail("states[0] is ", shape, "; its last dimension is dv + 4, at least 5");
  p.batch = shape[0];
  p.heads = p.kv_heads = shape[1];
  p.q_length = shape[2];
  p.d = 1;
  p.dv = shape[3] - kStateColumns;
  call.parts = parts.data();
  if ((p.state = static_cast<bool>(a.state))) {
    call.state = written("state", a.state);
    shape_is("state", a.state, shape);
    type_is("state", a.state.dtype(), {DType::f64});
  } else {
    call.out = written("out", a.out);
    shape_is("out", a.out, row_shape(a.states.front(), p.dv));
    type_is("out", a.out.dtype(), {DType::f64, DType::f32, DType::bf16, DType::f16});
    p.out_type = a.out.dtype();
    p.type = p.out_type == DType::f64 ? DType::f64 : DType::f32;
  }
  if ((p.lse = static_cast<bool>(a.lse))) {
    call.lse = written("lse", a.lse);
    shape_is("lse", a.lse, row_shape(a.states.front()));
    type_is("lse", a.lse.dtype(), {DType::f32, DType::f64});
    call.lse = per_row(call.lse, a.lse);
    p.lse_type = a.lse.dtype();
  }
  no_overlap();
  if (p.device == Device{}) kinds_of_states(parts);
  if (p.state) p.out_type = p.type;
  if (p.device != Device{}) return;  // a device reads no q: there are no keys
  call.q = {.data = reinterpret_cast<std::byte*>(const_cast<double*>(&kZero)),
            .type = p.type,
            .given = true};
}

// Rows of one chunk are divided in the type they were summed in, one for all: no row's bits depend
// on another's. A sink is counted once.
void Checker::kinds_of_states(const std::vector<Part>& parts) {
  struct Place {
    std::size_t n;
    Shape row;
  };
  std::optional<Place> first[2];  // rows summed in f32, in f64
  for_rows({p_.batch, p_.heads, p_.q_length}, [&](const Shape& row) {
    std::size_t with_sink = parts.size();
    for (std::size_t n = 0; n < parts.size(); ++n) {
      const int found = state_kind(parts[n].o, row, "states[", n, "]");
      const auto kind = static_cast<StateKind>(found % kStateKinds);
      if (kind == StateKind::chunk_f32 && !first[0]) first[0] = {n, row};
      if (kind == StateKind::chunk_f64 && !first[1]) first[1] = {n, row};
      if (first[0] && first[1])
        fail("states[", first[0]->n, "] is of f32 at ", first[0]->row, " and states[", first[1]->n,
             "] of f64 at ", first[1]->row, "; states that are joined are of one type");
      if (found < kSinkCounted) continue;
      if (with_sink < parts.size())
        fail("states[", with_sink, "] and states[", n, "] both count the sink at ", row,
             "; give sinks to one part alone");
      with_sink = n;
    }
  });
  if (first[0] || first[1]) p_.type = first[0] ? DType::f32 : DType::f64;
}

Request<Forward> check(const PartialArguments& a, std::vector<Part>& parts) {
  Request<Forward> request;
  Checker checker("attention_partial", request.problem, request.call);
  checker.inputs(a.q, a.k, a.v, a.options);
  checker.options(a.options);
  checker.partial(a.state, parts, request);
  return request;
}

Request<Forward> check(const StatesArguments& a, std::vector<Part>& parts) {
  Request<Forward> request;
  Checker(a.function, request.problem, request.call).states(a, parts, request);
  return request;
}

}  // namespace attend
