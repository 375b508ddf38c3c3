#include "text_model.h"

#include "cases/random.h"
#include "files/tensors.h"
#include "frame/usage_error.h"

#include <attend/train.h>

#include <algorithm>
#include <cmath>

namespace attend::cli {
namespace {

// The code points of a text. Strict: no overlong forms, surrogates, or stray bytes.
std::u32string decoded(std::string_view text, const std::string& what) {
  std::u32string out;
  for (std::size_t at = 0; at < text.size();) {
    const auto byte = [&](std::size_t n) {
      return at + n < text.size() ? static_cast<unsigned char>(text[at + n]) : 0u;
    };
    const unsigned first = byte(0);
    const std::size_t size = first < 0x80 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
    char32_t point = size == 1 ? first : first & (0x7Fu >> size);
    bool valid = first < 0x80 || (first >= 0xC2 && first < 0xF5);
    for (std::size_t n = 1; n < size; ++n) {
      valid = valid && (byte(n) & 0xC0u) == 0x80;
      point = (point << 6) | (byte(n) & 0x3Fu);
    }
    const char32_t least = size == 3 ? 0x800 : size == 4 ? 0x10000 : 0;
    if (!valid || point < least || point > 0x10FFFF || (point >= 0xD800 && point < 0xE000))
      throw UsageError(what + " is not UTF-8 at byte " + std::to_string(at));
    out += point;
    at += size;
  }
  return out;
}

void append_utf8(std::string& out, char32_t point) {
  const auto put = [&](char32_t bits) { out += static_cast<char>(bits); };
  if (point < 0x80) return put(point);
  if (point < 0x800) {
    put(0xC0 | (point >> 6));
  } else if (point < 0x10000) {
    put(0xE0 | (point >> 12));
    put(0x80 | ((point >> 6) & 0x3F));
  } else {
    put(0xF0 | (point >> 18));
    put(0x80 | ((point >> 12) & 0x3F));
    put(0x80 | ((point >> 6) & 0x3F));
  }
  put(0x80 | (point & 0x3F));
}

std::uint64_t hash_of(std::string_view bytes) noexcept {  // FNV-1a
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

}  // namespace

Characters::Characters(std::string_view text, const std::string& what) {
  std::u32string points = decoded(text, what);
  std::sort(points.begin(), points.end());
  points.erase(std::unique(points.begin(), points.end()), points.end());
  all_.assign(points.begin(), points.end());
}

std::string Characters::utf8() const {
  std::string out;
  for (const char32_t point : all_) append_utf8(out, point);
  return out;
}

std::vector<std::int64_t> Characters::encode(std::string_view text, const std::string& what) const {
  std::vector<std::int64_t> numbers;
  for (const char32_t point : decoded(text, what)) {
    const auto found = std::lower_bound(all_.begin(), all_.end(), point);
    if (found == all_.end() || *found != point) {
      std::string character;
      append_utf8(character, point);
      throw UsageError(std::string(what)
                           .append(" has the character '")
                           .append(character)
                           .append("', which the text has not"));
    }
    numbers.push_back(found - all_.begin());
  }
  return numbers;
}

std::string Characters::decode(const std::vector<std::int64_t>& numbers) const {
  std::string out;
  for (const std::int64_t number : numbers)
    append_utf8(out, all_.at(static_cast<std::size_t>(number)));
  return out;
}

TextData::TextData(const std::filesystem::path& path, std::int64_t length)
    : length_(length), text_(read_text(path)), characters_(text_, "--text: " + path.string()),
      fingerprint_(hash_of(text_)), numbers_(characters_.encode(text_, path.string())),
      learned_(static_cast<std::int64_t>(numbers_.size() * 9 / 10)) {
  const auto count = static_cast<std::int64_t>(numbers_.size());
  if (count - learned_ <= length)
    throw UsageError("--text: " + path.string() + " has " + std::to_string(count) +
                     " characters; it needs at least " + std::to_string(10 * length + 1) +
                     " for sequences of " + std::to_string(length));
}

// The targets are the tokens one place further.
void TextData::put_window(Batch& batch, std::int64_t row, std::int64_t begin) const {
  const auto from = numbers_.begin() + begin;
  std::copy_n(from, length_, batch.tokens.data<std::int64_t>() + row * length_);
  std::copy_n(from + 1, length_, batch.targets.data<std::int64_t>() + row * length_);
}

Batch TextData::batch(std::uint64_t seed, std::int64_t number, std::int64_t size) const {
  Batch batch{Tensor({size, length_}, DType::i64), Tensor({size, length_}, DType::i64)};
  const cases::Random random(seed, 2);
  for (std::int64_t row = 0; row < size; ++row)
    put_window(batch, row,
               random.below(learned_ - length_, static_cast<std::uint64_t>(number * size + row)));
  return batch;
}

double TextData::held_out_loss(const LanguageModel& model, std::int64_t windows,
                               std::optional<DType> cache_type, Context& context) const {
  const std::int64_t room = static_cast<std::int64_t>(numbers_.size()) - learned_ - length_ - 1;
  windows = std::min(windows, room / length_ + 1);
  Batch batch{Tensor({windows, length_}, DType::i64), Tensor({windows, length_}, DType::i64)};
  for (std::int64_t row = 0; row < windows; ++row)
    put_window(batch, row, learned_ + room * row / std::max<std::int64_t>(windows - 1, 1));
  Tensor logits;
  if (cache_type) {
    std::vector<KvCache> caches = model.make_caches(windows, cache_type);
    logits = model.forward(batch.tokens, caches, context);
  } else {
    logits = model.forward(batch.tokens, context);
  }
  return cross_entropy(logits, batch.targets, {}, context).value;
}

double TextData::unigram_loss() const {
  std::vector<double> counts(static_cast<std::size_t>(characters_.count()), 1);  // none is 0
  for (std::int64_t n = 0; n < learned_; ++n) ++counts[static_cast<std::size_t>(numbers_[n])];
  const double all = static_cast<double>(learned_ + characters_.count());
  double sum = 0;
  for (auto n = static_cast<std::size_t>(learned_); n < numbers_.size(); ++n)
    sum -= std::log(counts[static_cast<std::size_t>(numbers_[n])] / all);
  return sum / static_cast<double>(static_cast<std::int64_t>(numbers_.size()) - learned_);
}

}  // namespace attend::cli
