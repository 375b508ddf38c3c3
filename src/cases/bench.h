// The benchmark's table: what `attend bench` measures, and bench/compare.py beside other libraries
// (which reads it from `attend bench --list --json`), in any type.
#pragma once

#include "cases.h"

#include <string>
#include <vector>

namespace attend::cases {

enum class Operation : std::uint8_t {
  forward,       // attention()
  backward,      // attention_backward(), after an attention() that is not timed
  layer,         // MultiHeadAttention::forward
  layer_train,   // forward_train() and backward()
  inspect_rows,  // inspect(): lse, maximum, entropy
  inspect_top,   // and the 8 largest keys of each row
  inspect_all,   // and mass, metrics with tokens, a map of 128 x 128 tiles
};

// A layer's problem is that of its heads: model_dim = heads * d, queries = keys.
struct BenchCase {
  std::string suite;
  Operation operation = Operation::forward;
  Case problem;
  bool quick = false;  // belongs to the short run
};

std::string_view name_of(Operation operation);

// "gpt/B1_H12_T512_d64_causal": batch, heads, (key heads K, queries Q, where they differ), keys,
// size of a head. In the suites of more than one operation that follows: "layer/..._train",
// "inspect/..._all"; and last a type other than f32: "notes/..._bf16".
std::string name(const BenchCase& measured);

// Floating-point operations, a multiplication with an addition counting as two; the softmax is not
// counted, and a causal mask halves them:
//   forward  4 B H Tq Tk d         backward  5 / 2 of that (five products against two)
//   layer    8 B T (H d)^2 + forward         layer_train  3 times the projections, 7 / 2 forward
//   inspect_rows, inspect_top  1 / 2 of forward (one product)         inspect_all  as forward
double flops(const BenchCase& measured);

// Keys and values in their types, and their scales, which one query reads once: what limits a
// decoding step.
double bytes_read(const BenchCase& measured);
// Whether bytes count and not operations: few queries on many keys.
bool is_decode(const BenchCase& measured);

// Every suite, in order: notes bert gpt long decode backward layer, then length (speed over
// length), growth (to 131072 keys), inspect (beside forward) and cache (decode with keys and values
// of 8 bits), which are measured when asked for by name.
std::vector<BenchCase> bench_table(DType type = DType::f32);
std::vector<std::string> bench_suites();
bool only_by_name(std::string_view suite);

}  // namespace attend::cases
