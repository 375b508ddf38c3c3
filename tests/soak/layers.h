// NaN placement in the layers: cross-attention with a memory of which some rows are hidden.
#pragma once

#include "sweep.h"

namespace attend::test {

std::vector<std::string> judge_layers(const SweepCase& sweep_case, Tally& tally);

}  // namespace attend::test
