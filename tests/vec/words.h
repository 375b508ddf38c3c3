// The words of src/cpu/vec.h as plain functions on arrays, so that a test that is compiled for
// every machine can call those of an instruction set. An array of T holds `lanes` elements.
#pragma once

#include <attend/dtype.h>

#include <cstdint>

namespace attend::test {

template <class T>
struct Words {
  int lanes;
  T lowest_power;
  T whole;                         // Exp2<T>::kWhole
  void (*copy)(const T* a, T* r);  // load, store
  void (*load_first)(const T* a, std::int64_t n, T* r);
  void (*store_first)(const T* a, std::int64_t n, T* r);
  void (*set)(T x, T* r);
  void (*add)(const T* a, const T* b, T* r);
  void (*subtract)(const T* a, const T* b, T* r);
  void (*multiply)(const T* a, const T* b, T* r);
  void (*divide)(const T* a, const T* b, T* r);
  void (*fma)(const T* a, const T* b, const T* c, T* r);
  void (*add_product)(const T* a, const T* b, T* sum);
  void (*add_product_of_first)(const T* a, const T* b, T* sum);  // a[0] in every lane
  void (*fma_lane)(const T* a, const T* b, const T* c, T* r);    // r[lane][lanes]; none: nullptr
  void (*larger)(const T* a, const T* b, T* r);
  void (*ceiling)(const T* a, T* r);
  void (*scaled)(const T* a, const T* n, T* r);       // n: whole + the power
  void (*select_less)(const T* a, const T* b, T* r);  // 1 where a < b, 2 elsewhere
  bool (*all_finite)(const T* a);
  void (*wide)(const T* a, double* r);
  void (*narrowed)(const double* a, T* r);
  void (*transpose)(T* rows);  // [lanes][lanes]
  void (*exp2)(const T* a, T* r);
  void (*tanh)(const T* a, T* r);
};

// Of vectors of float: 16-bit numbers widened, and doubles rounded to them.
template <class Half>
struct HalfWords {
  void (*widened)(const Half* a, float* r);
  void (*packed)(const Half* a, float* r);  // four vectors; of bf16 in pairs
  void (*rounded)(const double* a, Half* r);
  bool (*clear)(const float* a, Half* r);  // two vectors; false: one of them is doubtful
};

struct InstructionSet {
  const char* name;
  bool fused;  // fma rounds once
  Words<float> f32;
  Words<double> f64;
  HalfWords<bf16> of_bf16;
  HalfWords<f16> of_f16;
};

extern const InstructionSet kGeneric, kAvx2, kAvx512, kNeon;

}  // namespace attend::test
