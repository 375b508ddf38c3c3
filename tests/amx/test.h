// What tests of AMX share.
#pragma once

#include "support/bf16_row.h"

namespace attend::test {

class Amx : public testing::Test {
 protected:
  void SetUp() override {
    const Machine machine = this_machine();
    if (!machine.amx_bf16) GTEST_SKIP() << "this machine has no AMX with bf16";
    if (!machine.amx_permitted) GTEST_SKIP() << "the operating system refuses the tiles of AMX";
  }
};

}  // namespace attend::test
