// A text as numbers: one for each different character (Unicode code point), in their order.
#pragma once

#include "induction.h"

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace attend::cli {

// Characters that a model knows. UTF-8 in, UTF-8 out.
class Characters {
 public:
  // The different characters of a text. `what` stands for the text in the message, if it is not
  // UTF-8.
  Characters(std::string_view text, const std::string& what);

  std::int64_t count() const noexcept { return static_cast<std::int64_t>(all_.size()); }
  std::string utf8() const;  // all of them

  // Numbers from a text; a character that is not known is refused.
  std::vector<std::int64_t> encode(std::string_view text, const std::string& what) const;
  std::string decode(const std::vector<std::int64_t>& numbers) const;

 private:
  std::vector<char32_t> all_;
};

// The first nine tenths of a text are learned, the rest is held out.
class TextData {
 public:
  // Refused if it is too short for a window of `length` in either part.
  TextData(const std::filesystem::path& path, std::int64_t length);

  const Characters& characters() const noexcept { return characters_; }
  std::uint64_t fingerprint() const noexcept { return fingerprint_; }  // of the bytes

  // Windows at random places of the learned part; a pure function of its arguments.
  Batch batch(std::uint64_t seed, std::int64_t number, std::int64_t size) const;
  // In nats a character, over at most `windows` windows spread over the held-out part; by way of KV
  // caches of a type of their own, if one is given.
  double held_out_loss(const LanguageModel& model, std::int64_t windows,
                       std::optional<DType> cache_type, Context& context) const;
  // What a model would reach that knew only how frequent each character is in the learned part.
  double unigram_loss() const;

 private:
  void put_window(Batch& batch, std::int64_t row, std::int64_t begin) const;

  std::int64_t length_;
  std::string text_;
  Characters characters_;
  std::uint64_t fingerprint_;
  std::vector<std::int64_t> numbers_;
  std::int64_t learned_;  // how many of them
};

}  // namespace attend::cli
