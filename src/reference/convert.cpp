// Elements of one type as another, one by one.
#include "core/row_operations.h"

namespace attend {
namespace {

void convert(const ConvertProblem& p, const ConvertCall& call, RowRange rows) noexcept {
  with_type(p.type, [&]<class From>(From) {
    with_type(p.to, [&]<class To>(To) {
      const From* const from = static_cast<const From*>(call.from);
      To* const to = static_cast<To*>(call.to);
      for (std::int64_t n = rows.begin * call.features; n < rows.end * call.features; ++n)
        if constexpr (std::is_same_v<From, To>) to[n] = from[n];
        else to[n] = static_cast<To>(widened(from[n]));
    });
  });
}

}  // namespace

extern constinit const Kernel<Convert> kReferenceConvert{
    .name = "reference.convert",
    .only_if_forced = false,
    .takes = kHostTypes,
    .declines = [](const ConvertProblem&, const Machine&) -> std::string { return {}; },
    .run = convert,
};

}  // namespace attend
