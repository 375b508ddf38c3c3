// Which scheme a call takes, if the caller leaves it open.
#pragma once

#include "distributed/whole.h"

namespace attend::distributed {

// `asked`, or, of Scheme::automatic, `heads` where no rank has much more to do than the mean and
// where it does not move many more bytes than `gather`.
Scheme chosen_scheme(const WholeProblem& whole, const DistributedOptions& asked, int ranks,
                     bool backward);

}  // namespace attend::distributed
