// Keys given part by part: partial states, cut at multiples of 256, which finish to the bits of the
// whole; and merge() of (out, lse), cut there and anywhere, which is as near as it says or refuses.
#pragma once

#include "support/dice.h"
#include "support/property_trial.h"
#include "sweep.h"

namespace attend::test {

// Of dense problems; "" for the others.
std::vector<std::string> judge_parts(const Trial& trial, Dice& dice, Tally& tally);

}  // namespace attend::test
