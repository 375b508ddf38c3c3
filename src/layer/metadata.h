// Numbers and words in the metadata of a file, read strictly: the whole text or nothing.
#pragma once

#include "core/printable.h"
#include "core/text.h"

#include <attend/io.h>

#include <charconv>
#include <string>
#include <string_view>

namespace attend {

// The text of a key. `where` begins the messages: "load: path: ".
inline const std::string& text_of(std::string_view where, const Metadata& metadata,
                                  const std::string& key) {
  const auto found = metadata.find(key);
  if (found == metadata.end()) throw FileError(text(where, "the metadata has no ", in_quotes(key)));
  return found->second;
}

template <class Integer>
Integer integer_of(std::string_view where, const Metadata& metadata, const std::string& key) {
  const std::string& digits = text_of(where, metadata, key);
  Integer value = 0;
  const char* const end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, value);
  if (error != std::errc() || stop != end)
    throw FileError(text(where, "the metadata's ", in_quotes(key), " is ", in_quotes(digits),
                         ", not a whole number in range"));
  return value;
}

}  // namespace attend
