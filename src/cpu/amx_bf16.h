// Chooses the tiles of AMX for bf16: in a file that includes this before its kernel, vectors of f32
// multiply them.
#pragma once

#include "cpu/amx_few_rows.h"
#include "cpu/amx_gradients.h"

namespace attend {
namespace {

template <>
struct ChosenTiles<F32> {
  using Type = AmxTiles<bf16>;
};
template <>
struct Matrix<F32> : AmxProducts<bf16> {};
template <>
struct FewRowsMatrix<F32> : AmxFewRows<bf16> {};
template <>
struct GradientMatrix<F32> : AmxGradients<bf16> {};

}  // namespace
}  // namespace attend
