// An Explanation as one page that needs no network: style, program and data are inside, and its
// Content-Security-Policy lets nothing else in.
#pragma once

#include "explanation.h"

namespace attend::cli {

std::string explain_page(const Explanation& explanation, Language language);

}  // namespace attend::cli
