// attend: multi-head attention from the shell. Each command is a file of this folder.
#include "command.h"
#include "signals.h"

#include <cstdio>
#include <new>

int main(int argc, char** argv) try {
  attend::cli::prepare_process();
  attend::cli::Program program;
  add_apply(program);
  add_bench(program);
  add_check(program);
  add_demo(program);
  add_explain(program);
  add_info(program);
  add_inspect(program);
  add_train(program);
  add_view(program);
  add_completion(program);
  add_man(program);
  return program.run(argc, argv);
} catch (const std::bad_alloc&) {  // before anything is known of the command line
  std::fputs("attend: there is not enough memory\n", stderr);
  return attend::cli::kMemory;
}
