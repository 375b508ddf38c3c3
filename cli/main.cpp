// attend: multi-head attention from the shell. attend NAME is NAME/command.cpp.
#include "frame/program.h"
#include "frame/signals.h"

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
