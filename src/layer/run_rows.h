// An operation on rows of features, by a row of the kernel table: on many threads, or launched.
#pragma once

#include "api/context.h"
#include "api/launch.h"
#include "layer/rows.h"

namespace attend {

// Each of the rows is made of `features` elements.
template <class Operation>
void run_rows(const Kernel<Operation>& row, const typename Operation::Problem& problem,
              const typename Operation::Call& call, std::int64_t rows, std::int64_t features,
              const Where& where) {
  if (rows == 0) return;
  if (row.launch != nullptr)
    return launch(Operation::kName, problem.device, where.queue(),
                  [&](Queue& queue) { return row.launch(problem, call, rows, queue); });
  for_row_blocks(rows, features, where, [&](std::int64_t, std::int64_t begin, std::int64_t end) {
    row.run(problem, call, {begin, end});
  });
}

// By the Context's row.
template <class Operation>
void run_rows(const typename Operation::Problem& problem, const typename Operation::Call& call,
              std::int64_t rows, std::int64_t features, const Where& where) {
  const Kernel<Operation>& row = ContextState::of(where).row_for<Operation>(problem);
  run_rows(row, problem, call, rows, features, where);
}

}  // namespace attend
