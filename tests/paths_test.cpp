// Do the cases of the conformance test go every way through the CPU kernels? This program has
// kernels of its own, compiled with marks (src/cpu/paths.h); the linker takes them before those of
// the library. A mark that no case meets is a path that the conformance test does not test.
#include "cases/cases.h"
#include "cases/oracle/statistics.h"
#include "support/examination.h"

#define ATTEND_PATHS "paths_test"
#include "cpu/paths.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

namespace attend::test {
namespace {

// The file of a row: "cpu.generic.forward" is in generic_forward.cpp.
std::string file_of(const std::string& row) {
  std::string file = row.substr(row.find('.') + 1);
  std::replace(file.begin(), file.end(), '.', '_');
  return file;
}

std::vector<std::string> marked_rows(const std::string& operation) {
  std::vector<std::string> rows;
  for (const std::string& row : kernels_for(operation))
    for (const KernelPath* path = KernelPath::first; path != nullptr; path = path->next)
      if (file_of(row) == path->file) {
        rows.push_back(row);
        break;
      }
  return rows;
}

// Every row that has marks and takes the case, on as many threads as every machine can have. The
// files of those that do go into `ran`: the others are for machines with more instructions.
void run(const cases::Case& problem, std::set<std::string>& ran) {
  static Context context(ContextOptions{.threads = 2});
  const cases::Instance in = cases::make(problem);
  const auto with_rows = [&](const std::string& operation, auto use) {
    for (const std::string& row : marked_rows(operation)) {
      try {
        use(row);
        ran.insert(file_of(row));
      } catch (const Unsupported&) {  // the conformance test counts these
      }
    }
  };
  with_rows("forward", [&](const std::string& row) {
    Plan::attention(in.q, in.k, in.v, in.out, in.options, in.outputs, {row}, context)
        .run(in.q, in.k, in.v, in.out, in.options, in.outputs);
  });
  const AttentionGradients& g = in.gradients;
  if (g.dq || g.dk || g.dv || g.dbias || g.dsinks || g.dalibi) {
    attention(in.q, in.k, in.v, in.out, in.options, in.outputs_with_lse(), context);
    with_rows("backward", [&](const std::string& row) {
      Plan::attention_backward(in.backward_inputs(), in.options, g, {row}, context)
          .run_backward(in.backward_inputs(), in.options, g);
    });
  }
  const Inspection asked(Reader({in.q, in.k, in.v, in.dout, in.dlse, in.options}));
  with_rows("inspect", [&](const std::string& row) {
    Plan::inspect(in.q, in.k, in.options, asked.options, {row}, context)
        .run_inspect(in.q, in.k, in.options, asked.options);
  });
}

TEST(paths, every_path_is_entered_by_a_case_of_the_conformance_test) {
  std::set<std::string> ran;
  for (cases::Case problem : cases::table())
    for (const DType type : {DType::f32, DType::f64}) {  // the others have the vectors of f32
      problem.type = type;
      run(problem, ran);
    }
  std::map<std::string, int> marks;
  for (const KernelPath* path = KernelPath::first; path != nullptr; path = path->next) {
    if (!ran.contains(path->file)) continue;
    ++marks[path->file];
    EXPECT_TRUE(path->entered) << path->file << ", f" << 8 * path->bytes << ": no case enters \""
                               << path->name << "\""
                               << (path->number == 0 ? "" : " " + std::to_string(path->number));
  }
  for (const auto& [file, count] : marks) EXPECT_GE(count, 20) << file;
  EXPECT_GE(marks.size(), 3U);
}

}  // namespace
}  // namespace attend::test
