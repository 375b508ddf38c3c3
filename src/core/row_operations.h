// What layers do to rows of features between products: norms, activations and rotary positions,
// their gradients, and conversion. A row of the kernel table for one of them is a function over
// some of the rows; the layers cut tensors into blocks of rows and hand these to threads. Or it is
// a launch of all rows.
#pragma once

#include "core/kernel.h"

#include <attend/feed_forward.h>
#include <attend/multi_head_attention.h>
#include <attend/norm.h>

namespace attend {

// What a block is does not depend on the threads, and so sums over blocks do not either. A range of
// rows is one block, or a part of one.
inline constexpr std::int64_t kBlockRows = 64;
inline std::int64_t block_count(std::int64_t rows) { return (rows + kBlockRows - 1) / kBlockRows; }

struct RowRange {
  std::int64_t begin, end;
};

// Rows [rows, features] that are read, the features of each side by side. What is written has its
// rows one behind the other, if it has no stride of its own.
struct ConstRows {
  const void* data = nullptr;
  std::int64_t row = 0;  // stride
};

// ---- Norms -------------------------------------------------------------------------------------

// Problems here have no sizes: a row is chosen by the type and one of kVariants, once.
struct NormProblem {
  Device device;
  DType type = DType::f32;  // of all tensors
  NormKind kind = NormKind::layer_norm;

  static constexpr std::size_t kVariants = 2;
  std::size_t variant() const noexcept { return static_cast<std::size_t>(kind); }
  friend bool operator==(const NormProblem&, const NormProblem&) = default;
};

struct NormCall {
  std::int64_t dim = 0;
  double epsilon = 0;
  ConstRows x;
  const void *weight = nullptr, *bias = nullptr;  // [dim]; the bias may be none
  void* y = nullptr;
  std::int64_t y_row = 0;  // stride
};

struct NormBackwardCall {
  std::int64_t dim = 0;
  double epsilon = 0;
  ConstRows x, dy;
  const void* weight = nullptr;
  void* dx = nullptr;
  double* sums = nullptr;  // [blocks, 2, dim]: a block's dweight and dbias are added to its own
  // Instead of these, of a launch: the sums over all blocks, in their order. dbias may be none.
  void *dweight = nullptr, *dbias = nullptr;
};

struct NormForward {
  static constexpr std::string_view kName = "norm";
  using Problem = NormProblem;
  using Call = NormCall;
  static constexpr bool kOnRows = true;
};
struct NormBackward {
  static constexpr std::string_view kName = "norm_backward";
  using Problem = NormProblem;
  using Call = NormBackwardCall;
  static constexpr bool kOnRows = true;
};

// ---- Activations -------------------------------------------------------------------------------

struct ActivationProblem {
  Device device;
  DType type = DType::f32;
  Activation kind = Activation::gelu;

  static constexpr std::size_t kVariants = 4;
  std::size_t variant() const noexcept { return static_cast<std::size_t>(kind); }
  friend bool operator==(const ActivationProblem&, const ActivationProblem&) = default;
};

// hidden = act(up); swiglu: silu(gate) * up
struct ActivationCall {
  std::int64_t features = 0;
  const void *up = nullptr, *gate = nullptr;
  void* hidden = nullptr;
};

// From the gradient at the hidden values to those at up and at the gate.
struct ActivationBackwardCall {
  std::int64_t features = 0;
  const void *up = nullptr, *gate = nullptr, *dhidden = nullptr;
  void *dup = nullptr, *dgate = nullptr;
};

struct ActivationForward {
  static constexpr std::string_view kName = "activation";
  using Problem = ActivationProblem;
  using Call = ActivationCall;
  static constexpr bool kOnRows = true;
};
struct ActivationBackward {
  static constexpr std::string_view kName = "activation_backward";
  using Problem = ActivationProblem;
  using Call = ActivationBackwardCall;
  static constexpr bool kOnRows = true;
};

// ---- Rotary positions --------------------------------------------------------------------------

struct RotaryProblem {
  Device device;
  DType type = DType::f32;
  Rotary::Pairing pairing = Rotary::Pairing::halves;

  static constexpr std::size_t kVariants = 2;
  std::size_t variant() const noexcept { return static_cast<std::size_t>(pairing); }
  friend bool operator==(const RotaryProblem&, const RotaryProblem&) = default;
};

// Where the rows of x [batch, heads, length, d] stand: each sequence counts from its first row on.
struct RowPlaces {
  std::int64_t length = 0;     // rows of a sequence; packed, of all
  std::int64_t sequences = 0;  // of packed rows, and where each of them begins, [sequences + 1]
  Strided starts{};
  // The first row's place: this; or that of each sequence; or so that the last is at the last key.
  std::int64_t first = 0;
  Strided first_of_each{};
  bool ends_with_keys = false;
  std::int64_t keys = 0;  // of a sequence, unless they are listed
  Strided key_lengths{}, key_starts{};
};

// The place of row n, counted over all sequences. Lists of a device are not checked by anybody: it
// reads nothing outside of them.
ATTEND_HOST_DEVICE inline std::int64_t place_of(const RowPlaces& p, std::int64_t n) noexcept {
  const auto at = [](const Strided& list, std::int64_t b) {
    return load_integer(list, list.offset(b, 0, 0));
  };
  if (p.starts && p.sequences < 1) return 0;  // no sequence has the row
  std::int64_t b = p.starts ? 0 : n / p.length, i = p.starts ? n : n % p.length;
  std::int64_t rows = p.length;
  if (p.starts) {
    for (std::int64_t end = p.sequences; end - b > 1;) {  // the last that begins at or before n
      const std::int64_t middle = b + (end - b) / 2;
      (at(p.starts, middle) <= n ? b : end) = middle;
    }
    rows = at(p.starts, b + 1) - at(p.starts, b);
    i = n - at(p.starts, b);
  }
  if (p.first_of_each) return at(p.first_of_each, b) + i;
  if (!p.ends_with_keys) return p.first + i;
  const std::int64_t keys = p.key_lengths  ? at(p.key_lengths, b)
                            : p.key_starts ? at(p.key_starts, b + 1) - at(p.key_starts, b)
                                           : p.keys;
  return keys - rows + i;
}

// x [batch, heads, length, d] is turned in place. Row n is that of all heads at [n / length, :,
// n % length]:
//   (a, b) <- (a cos t - b sin t, a sin t + b cos t),   t = position[n] * frequency[c]
struct RotaryCall {
  std::int64_t heads = 0, length = 0, pairs = 0;
  Strided x;
  const std::int64_t* position = nullptr;
  const double* frequency = nullptr;  // [pairs]; in memory of the host
  bool back = false;                  // by -t: the inverse, and the gradient
  RowPlaces places{};                 // of a launch, instead of the position
};

struct RotaryForward {
  static constexpr std::string_view kName = "rotary";
  using Problem = RotaryProblem;
  using Call = RotaryCall;
  static constexpr bool kOnRows = true;
};

// ---- Conversion --------------------------------------------------------------------------------

// From one floating-point type to another, or to the same. Each number is rounded once, to nearest
// even. A NaN keeps its sign and, but in f16, its upper bits; whether a signalling one is quiet
// when it has been widened is up to the machine.
struct ConvertProblem {
  Device device;
  DType type = DType::f32, to = DType::f32;

  static constexpr std::size_t kVariants = 4;
  std::size_t variant() const noexcept { return static_cast<std::size_t>(to); }
  friend bool operator==(const ConvertProblem&, const ConvertProblem&) = default;
};

struct ConvertCall {
  std::int64_t features = 0;
  const void* from = nullptr;
  void* to = nullptr;  // does not overlap it
};

struct Convert {
  static constexpr std::string_view kName = "convert";
  using Problem = ConvertProblem;
  using Call = ConvertCall;
  static constexpr bool kOnRows = true;
};

// ---- Sums --------------------------------------------------------------------------------------

struct AddProblem {
  Device device;
  DType type = DType::f32;

  static constexpr std::size_t kVariants = 1;
  std::size_t variant() const noexcept { return 0; }
  friend bool operator==(const AddProblem&, const AddProblem&) = default;
};

// y = a + b, or a where b is none; each is rounded once. Of any strides; y may be a. On the host
// layers add by loops of their own (layer/elementwise.h).
struct AddCall {
  std::int64_t features = 0;
  struct Rows {
    const void* data = nullptr;
    std::int64_t row = 0, column = 0;  // strides
  };
  Rows a, b;
  void* y = nullptr;
  std::int64_t y_row = 0, y_column = 0;
};

struct Add {
  static constexpr std::string_view kName = "add";
  using Problem = AddProblem;
  using Call = AddCall;
  static constexpr bool kOnRows = true;
};

// ---- Rows of the kernel table ------------------------------------------------------------------

template <class Operation>
requires(Operation::kOnRows) struct Kernel<Operation> {
  using Problem = typename Operation::Problem;
  using Call = typename Operation::Call;

  std::string_view name;  // "cpu.neon.norm"
  bool only_if_forced;
  Features takes;
  std::string (*declines)(const Problem&, const Machine&);
  void (*run)(const Problem&, const Call&, RowRange) noexcept = nullptr;
  // Instead of run(), all rows at once; as in core/kernel.h.
  Status (*launch)(const Problem&, const Call&, std::int64_t rows, Queue&) noexcept = nullptr;
};

Features features_of(const NormProblem& problem);
Features features_of(const ActivationProblem& problem);
Features features_of(const RotaryProblem& problem);
Features features_of(const ConvertProblem& problem);
Features features_of(const AddProblem& problem);

inline constexpr Features kTakenByNorms =
    kHostTypes | Features{Feature::layer_norm, Feature::rms_norm};
inline constexpr Features kTakenByActivations =
    kHostTypes | Features{Feature::relu, Feature::gelu, Feature::gelu_tanh, Feature::swiglu};
inline constexpr Features kTakenByRotary =
    kHostTypes | Features{Feature::halves, Feature::neighbours};

}  // namespace attend
