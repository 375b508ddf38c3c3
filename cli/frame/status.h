// How a command ends.
#pragma once

namespace attend::cli {

enum Status : int {
  kOk = 0,
  kFailedCheck = 1,
  kUsage = 2,
  kMemory = 3,
  kDevice = 4,
  kInterrupted = 130,  // as shells show a process that SIGINT ended
};

}  // namespace attend::cli
