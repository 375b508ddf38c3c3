// The rows of the kernel table for operations on rows of features, of an instruction set.
#pragma once

#include "cpu/activation.h"
#include "cpu/convert.h"
#include "cpu/declines.h"
#include "cpu/norm.h"
#include "cpu/rotary.h"

// Rows called cpu.<set>.norm, ... and kSetNorm, ...
#define ATTEND_ROW_KERNELS(Set, set)                                                            \
  extern constinit const Kernel<NormForward> k##Set##Norm{                                      \
      "cpu." #set ".norm", false, kTakenByNorms, declines_##set<NormProblem>,                   \
      norm_rows<F32, F64>};                                                                     \
  extern constinit const Kernel<NormBackward> k##Set##NormBackward{                             \
      "cpu." #set ".norm_backward", false, kTakenByNorms, declines_##set<NormProblem>,          \
      norm_backward_rows<F32, F64>};                                                            \
  extern constinit const Kernel<ActivationForward> k##Set##Activation{                          \
      "cpu." #set ".activation", false, kTakenByActivations, declines_##set<ActivationProblem>, \
      activation_rows<F32, F64>};                                                               \
  extern constinit const Kernel<ActivationBackward> k##Set##ActivationBackward{                 \
      "cpu." #set ".activation_backward", false, kTakenByActivations,                           \
      declines_##set<ActivationProblem>, activation_backward_rows<F32, F64>};                   \
  extern constinit const Kernel<RotaryForward> k##Set##Rotary{                                  \
      "cpu." #set ".rotary", false, kTakenByRotary, declines_##set<RotaryProblem>,              \
      rotary_rows<F32, F64>};                                                                   \
  extern constinit const Kernel<Convert> k##Set##Convert{                                       \
      "cpu." #set ".convert", false, kHostTypes, declines_##set<ConvertProblem>,                \
      convert_rows<F32>};
