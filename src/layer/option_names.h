// How the choices of layers are written in the metadata of files, in the order of their enums.
#pragma once

#include <string_view>

namespace attend {

inline constexpr std::string_view kPlacements[] = {"post", "pre", "none"};
inline constexpr std::string_view kNorms[] = {"layer_norm", "rms_norm"};
inline constexpr std::string_view kActivations[] = {"relu", "gelu", "gelu_tanh", "swiglu"};
inline constexpr std::string_view kTypes[] = {"f64", "f32", "bf16", "f16"};

}  // namespace attend
