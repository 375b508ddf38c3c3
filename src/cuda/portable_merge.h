// What the host hands to the kernel that joins results over parts of the keys (portable_merge.cu).
#pragma once

#include "core/operation.h"

namespace attend::cuda {

struct PortableMerge {
  MergeProblem problem;
  MergeCall call;  // parts: in memory of the device
};

}  // namespace attend::cuda
