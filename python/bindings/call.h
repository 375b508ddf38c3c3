// What attention and its gradient read and hand out, shared by the functions and the plans.
#pragma once

#include "fields.h"
#include "place.h"

#include <attend/attention.h>

#include <optional>
#include <vector>

namespace attend::python {

struct Inputs {
  Inputs(nb::handle q_, nb::handle k_, nb::handle v_, const char* where,
         Devices devices_ = Devices::host)
      : q(read(q_, {where, "q", Kind::floating, false, devices_})),
        k(read(k_, {where, "k", Kind::keys, false, devices_})),
        v(read(v_, {where, "v", Kind::keys, false, devices_})), devices(devices_) {}
  Array q, k, v;
  Devices devices;
};

// What backward reads besides.
struct BackwardArrays {
  BackwardArrays(nb::handle out_, nb::handle lse_, nb::handle dout_, nb::handle dlse_,
                 const char* where, Devices devices = Devices::host)
      : out(read(out_, {where, "out", Kind::floating, false, devices})),
        lse(read(lse_, {where, "lse", Kind::floating, false, devices})),
        dout(read(dout_, {where, "dout", Kind::floating, false, devices})),
        dlse(read(dlse_, {where, "dlse", Kind::floating, true, devices})) {}
  Array out, lse, dout, dlse;
};

inline BackwardInputs inputs_of(const Inputs& in, const BackwardArrays& more) {
  return {.q = in.q,
          .k = in.k,
          .v = in.v,
          .out = more.out,
          .lse = more.lse,
          .dout = more.dout,
          .dlse = more.dlse};
}

// What a call is asked to hand out besides `out`.
struct Wanted {
  Wanted() = default;
  Wanted(nb::handle lse_, nb::handle weights_, nb::handle scores_, nb::handle heads_,
         const char* where)
      : lse(number<bool>(lse_, where, "return_lse", "True or False")),
        weights(number<bool>(weights_, where, "return_weights", "True or False")) {
    if (!scores_.is_none()) scores = to_stage(scores_, where);
    if (!heads_.is_none()) choose(heads_, where);
  }
  // The shape of the weights, of that of all heads'.
  Shape chosen(Shape all) const {
    if (!heads.empty()) all[1] = static_cast<std::int64_t>(heads.size());
    return all;
  }
  bool lse = false, weights = false;
  std::optional<ScoreStage> scores;
  std::vector<std::int64_t> heads;  // whose weights; none: of all

 private:
  void choose(nb::handle list, const char* where);
};

// The results of a call: `out` in the caller's array or a new one, and what else is wanted.
class Results {
 public:
  Results(const Inputs& in, const AttentionOptions& options, const Wanted& wanted, nb::handle out,
          const char* where, const Place& place);

  TensorView out() { return given_.is_none() ? out_.view() : given_view_.view; }
  AttentionOutputs outputs();

  // `out`, or a tuple of all that was wanted: out, lse, weights, scores.
  nb::object to_python(nb::handle like);

 private:
  nb::object given_;
  WritableArray given_view_;
  NewArray out_, lse_, weights_, scores_;
  ScoreStage stage_ = ScoreStage::masked;
  std::vector<std::int64_t> heads_;
};

// New arrays for every gradient that exists.
class Gradients {
 public:
  Gradients() = default;
  Gradients(const Inputs& in, const AttentionOptions& options, const Place& place);

  AttentionGradients views() const;

  // (dq, dk, dv), and where the options hold a bias, sinks or alibi a named tuple with theirs too.
  nb::object to_python(nb::handle like);

 private:
  NewArray dq_, dk_, dv_, dbias_, dsinks_, dalibi_;
};

}  // namespace attend::python
