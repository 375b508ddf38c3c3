// attend info: the machine, the kernels, the version.
#include "command.h"

#include <iostream>

namespace attend::cli {
namespace {

int info(const Common& common) {
  if (common.json) {
    print(json_object("attend.info/1"));
    return kOk;
  }
  std::cout << "attend " << version() << '\n';
  return kOk;
}

}  // namespace

void add_info(Program& program) {
  program.add("info", "Machine, kernels and version.", "  attend info --json", info);
}

}  // namespace attend::cli
