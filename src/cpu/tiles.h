// Register tiles, the layer on top of the words of vec.h. A tile multiplies Operands and adds them
// up in Sums:
//
//   Operand   elements of what is brought to a tile: rows of a, packed b, panels of keys, strips
//             of values, weights before they are multiplied
//   Sum       elements of what it adds up, V::T of the vectors: scores, weights, outputs, gradients
//   kDepth    steps of the depth that one multiply-add takes: 1 here; with 16-bit operands 2
//             (VDPBF16PS), 4 (BFMMLA) or 32 (AMX)
//
// pack.h brings operands into the order in which tiles read them: elements of tensors, once they
// are of that type (convert_row), and sums that are multiplied again (SumsAsOperand).
// product_tile() (product.h) makes the sums. A tile of another Operand or kDepth is a struct here
// and its own version of these; a static_assert on kMultipliesSums stands in each that it needs.
//
// The rest are shapes, and how much is worked on at a time: data, measured, of an instruction set
// and its cores. Any other would give the same bits: a sum is a chain of its own, and no more than
// its place in a tile is chosen here.
#pragma once

#include "cpu/paths.h"
#include "cpu/vec.h"

namespace attend {
namespace {

// kScores, kFeatures     vectors of a tile: of scores, and of values or gradients
// kWide, kWidest         of few rows, and of one or two: more sums at the same time
// kLast                  up to which a last tile of scores is widened rather than cut
// rows(vectors, along)   of a tile of so many vectors, whose a lies along its depth or across
// kSteps                 of the depth (1 or 2) that the loop of a product takes at once
// kFewRows               up to which keys in lanes are better than rows (few_rows.h, whose operands
//                        are sums; 0: never)
// kFewSlice, kFewAhead   there: keys whose values are weighed together; asked for so much before
// kFewLater              bytes before that again, on cores that ask twice (core/kernel.h); 0: none
// kPanels                keys and values that many tiles read are brought into the order in which
//                        tiles read them, and so are rows of a (products by lane want that)
// kArrangeForward,
// kArrangeBackward       tiles from which on that pays
// kNarrowSums            of a product of few rows with packed weights of 8 or 16 bits, vectors
// kPanelsOfB             of a product of layers that are packed at a time, if b is not packed yet
// kTiles, kLeastTiles    of scores in a task of forward, which share a chunk of keys; at least
// kSliceBytes            values of that many bytes are weighed at a time; 0: those of 64 keys
// kAsks                  forward asks for the keys of few rows itself
// kBandKeys              keys whose P and dS backward forms for one tile before it goes to the next
// kAsksSums              it asks for the sums of dk and dv before the products added to them

// Tiles of vectors of T: they multiply what they add up in, a step at a time.
template <class T>
struct VectorTiles {
  using Operand = T;
  using Sum = T;
  static constexpr int kDepth = 1, kArrangeForward = 12, kArrangeBackward = 4, kBandKeys = 256,
                       kFewLater = 0;
  static constexpr bool kAsksSums = false;
};

// Broadcast elements of a: 24 sums, 2 vectors of b (32 registers).
template <class T>
struct Avx512Tiles : VectorTiles<T> {
  static constexpr int kScores = 2, kFeatures = 2, kWide = 4, kWidest = 4, kLast = 2, kSteps = 2;
  static constexpr int kFewRows = 8, kFewSlice = 16, kFewAhead = 32;
  static constexpr int kNarrowSums = 16;
  static constexpr int kPanelsOfB = 1, kTiles = 4, kLeastTiles = 2, kSliceBytes = 0, kBandKeys = 8;
  static constexpr bool kPanels = false, kAsks = false, kAsksSums = true;
  static constexpr int rows(int vectors, bool) { return vectors > kScores ? 4 : 12; }
};

// 12 sums, 2 vectors of b and an element of a: 15 of 16 registers.
template <class T>
struct Avx2Tiles : VectorTiles<T> {
  static constexpr int kScores = 2, kFeatures = 2, kWide = 4, kWidest = 4, kLast = 3, kSteps = 1;
  static constexpr int kFewRows = 4, kFewSlice = 16, kFewAhead = 32;
  static constexpr int kNarrowSums = 8;
  static constexpr int kPanelsOfB = 1, kTiles = 4, kLeastTiles = 2, kSliceBytes = 0;
  static constexpr bool kPanels = false, kAsks = false;
  static constexpr int rows(int vectors, bool) {
    return vectors > kLast ? 2 : vectors > kScores ? 4 : 6;
  }
};

// By lane: a broadcast load would take a turn of the units that multiply. 24 sums, since 16 leave
// these units waiting (Neoverse N1: 30 of 40 GFLOP/s, against 38):
//   across   8 x 3 and 12 x 2 vectors, with 2 and 3 vectors of a
//   along    6 x 3, with 6 vectors of a, each for kLanes steps; 4 x 5
template <class T>
struct NeonTiles : VectorTiles<T> {
  static constexpr int kScores = 3, kFeatures = 2, kWide = 4, kWidest = 8, kLast = 5, kSteps = 1;
  static constexpr int kFewRows = 1, kFewSlice = 8, kFewAhead = 48, kFewLater = 64 << 10;
  static constexpr int kNarrowSums = 16;
  static constexpr int kPanelsOfB = 4, kTiles = 16, kLeastTiles = 4, kSliceBytes = 32 << 10;
  static constexpr bool kPanels = true, kAsks = true;
  static constexpr int rows(int vectors, bool along) {
    if (vectors > kScores) return vectors > kLast ? 2 : 4;
    return along ? (vectors == 3 ? 6 : 8) : (vectors == 3 ? 8 : 12);
  }
};

// 4 x 2 vectors; sixteen registers are the least that is met.
template <class T>
struct GenericTiles : VectorTiles<T> {
  static constexpr int kScores = 2, kFeatures = 2, kWide = 4, kWidest = 4, kLast = 2, kSteps = 1;
  static constexpr int kFewRows = 4, kFewSlice = 16, kFewAhead = 32;
  static constexpr int kNarrowSums = 8;
  static constexpr int kPanelsOfB = 1, kTiles = 4, kLeastTiles = 2, kSliceBytes = 0;
  static constexpr bool kPanels = false, kAsks = false;
  static constexpr int rows(int vectors, bool) { return vectors > kScores ? 2 : 4; }
};

// Tiles of AMX (amx_tiles.h): matrices of bf16 or f16, 32 steps at once, 16 x 16 sums in a register
// of their own; S^T in two by two of them. Products are those of Matrix<V>, below: what only
// product.h and few_rows.h ask for is not here.
template <class Element>
struct AmxTiles {
  using Operand = Element;
  using Sum = float;
  static constexpr int kDepth = 32, kScores = 2, kFeatures = 2, kLast = 2, kFewRows = 0;
  static constexpr int kTiles = 8, kLeastTiles = 2;
  static constexpr bool kPanels = false;
};

// Vectors of AVX-512 that add up products of pairs (avx512_bf16_tiles.h): bf16, S^T in 8 keys x 32
// rows, 16 sums.
struct Avx512Bf16Tiles {
  using Operand = bf16;
  using Sum = float;
  static constexpr int kDepth = 2, kScores = 2, kFeatures = 2, kLast = 2, kFewRows = 0;
  static constexpr int kTiles = 8, kLeastTiles = 2;
  static constexpr bool kPanels = false;
};

// Vectors of NEON with 2 x 2 sums each (neon_bf16_tiles.h): bf16, 4 steps at once, of which loops
// take two; S^T in 8 keys x 12 rows, 24 sums, since 16 of them wait for each other (a Neoverse V1
// begins 4 a cycle, each of 3 to 5 cycles).
struct NeonBf16Tiles {
  using Operand = bf16;
  using Sum = float;
  static constexpr int kDepth = 8, kScores = 3, kFeatures = 2, kLast = 3, kFewRows = 0;
  static constexpr int kTiles = 16, kLeastTiles = 4;
  static constexpr bool kPanels = false;
};

// The tiles of the vectors V: those of their instruction set, unless a file chooses others for its
// kernels (a specialisation, before it includes them).
template <class V>
struct ChosenTiles {
  using Type = typename V::RegisterTiles;
};
template <class V>
using TilesOf = typename ChosenTiles<V>::Type;
template <class V>
using OperandOf = typename TilesOf<V>::Operand;
template <class V>
using SumOf = typename TilesOf<V>::Sum;
template <class V>
inline constexpr std::int64_t kLaterBytes = [] {
  if constexpr (requires { TilesOf<V>::kFewLater; }) return TilesOf<V>::kFewLater;
  else return 0;
}();
template <class V>
inline constexpr bool kMultipliesSums =
    TilesOf<V>::kDepth == 1 && std::is_same_v<OperandOf<V>, SumOf<V>>;

// Tiles of a matrix instruction, which takes many steps, and many rows, at once. What attention
// asks of them is Matrix<V>: a specialisation, in the header of the instructions. It takes keys in
// groups of Matrix<V>::kKeyGroup, from a multiple of that on.
template <class V>
inline constexpr bool kMatrix = (TilesOf<V>::kDepth > 1);
template <class V>
struct Matrix;
template <class V>
struct GradientMatrix;  // the same of backward
template <class V>
struct FewRowsMatrix {  // the same of few rows of queries (matrix_few_rows.h), up to kMost
  static constexpr int kMost = 0;
};

// Keys that are taken together, from a multiple of it on.
template <class V>
inline constexpr int kKeyGroup = [] {
  if constexpr (kMatrix<V>) return Matrix<V>::kKeyGroup;
  else return 1;
}();

// A row of `count` numbers in whole vectors.
template <class V>
constexpr std::int64_t whole_vectors(std::int64_t count) {
  return (count + V::kLanes - 1) / V::kLanes * V::kLanes;
}

// A depth in whole multiply-adds.
template <class V>
constexpr std::int64_t whole_depth(std::int64_t depth) {
  return (depth + TilesOf<V>::kDepth - 1) / TilesOf<V>::kDepth * TilesOf<V>::kDepth;
}

template <class V>
inline constexpr int kTileVectors = TilesOf<V>::kScores;
template <class V>
inline constexpr int kFeatureVectors = TilesOf<V>::kFeatures;
template <class V>
inline constexpr int kWideVectors = TilesOf<V>::kWide;
template <class V>
inline constexpr int kWidestVectors = TilesOf<V>::kWidest;
template <class V>
inline constexpr int kLastVectors = TilesOf<V>::kLast;
template <class V>
inline constexpr int kStepsTogether = TilesOf<V>::kSteps;
template <class V>
inline constexpr int kPanelRows = TilesOf<V>::rows(kTileVectors<V>, false);
template <class V>
constexpr bool is_wide(int vectors) {  // a tile of few rows
  // NOLINTNEXTLINE(misc-redundant-expression): of some instruction sets they are the same
  return vectors == kWideVectors<V> || vectors == kWidestVectors<V>;
}

}  // namespace
}  // namespace attend
