// An Explanation as JSON.
#pragma once

#include "explanation.h"
#include "frame/json.h"

namespace attend::cli {

// In one language (--json), or in both with every derivation (the page).
Json json_of(const Explanation& explanation, Language language);
Json page_data(const Explanation& explanation, Language language);

}  // namespace attend::cli
