// A case of the table over ranks that are threads: cut by layouts, computed, put together again.
#pragma once

#include "cases/instance.h"
#include "support/property_compare.h"

#include <attend/distributed.h>

#include <string>
#include <vector>

namespace attend::test {

// How a problem is divided.
struct Division {
  int ranks = 1;
  std::int64_t granule = distributed::kGranule;
  bool contiguous = false;  // else serpentine
  distributed::Scheme scheme = distributed::Scheme::gather;
  distributed::Bits bits = distributed::Bits::one_process;
  bool contiguous_keys = false;  // these alone
};
std::string name(const Division& division);

distributed::Layouts layouts_of(const cases::Instance& whole, const Division& division);

// Whether ranks can be given it: not on pages.
bool can_be_divided(const cases::Case& problem);

// out, lse and gradients, as those of the whole.
struct RanksResult {
  Tensor out, lse;
  Tensor dq, dk, dv;
  std::vector<Tensor> dbias, dsinks, dalibi;  // of each rank
};
// Throws what the first rank threw, if any did.
RanksResult run_ranks(const cases::Instance& whole, const Division& division, Context& context);

// Empty, or what is not as it is in the undivided call, which has been made.
std::string differs(const cases::Instance& whole, const RanksResult& result,
                    const Division& division);

}  // namespace attend::test
