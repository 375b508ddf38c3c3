// Chooses the tiles of AMX for f16: in a file that includes this before its kernel, vectors of f32
// multiply them.
#pragma once

#include "cpu/amx_few_rows.h"
#include "cpu/amx_gradients.h"

namespace attend {
namespace {

template <>
struct ChosenTiles<F32> {
  using Type = AmxTiles<f16>;
};
template <>
struct Matrix<F32> : AmxProducts<f16> {};
template <>
struct FewRowsMatrix<F32> : AmxFewRows<f16> {};
template <>
struct GradientMatrix<F32> : AmxGradients<f16> {};

}  // namespace
}  // namespace attend
