// An operation on rows of features, by the Context's row of the kernel table, on many threads.
#pragma once

#include "api/context.h"
#include "layer/rows.h"

namespace attend {

// Each of the rows is made of `features` elements.
template <class Operation>
void run_rows(const typename Operation::Problem& problem, const typename Operation::Call& call,
              std::int64_t rows, std::int64_t features, const Where& where) {
  const Kernel<Operation>& row = ContextState::of(where).row_for<Operation>(problem);
  for_row_blocks(rows, features, where, [&](std::int64_t, std::int64_t begin, std::int64_t end) {
    row.run(problem, call, {begin, end});
  });
}

}  // namespace attend
