#include "tensors.h"

#include "cases/oracle/widen.h"
#include "cases/random.h"
#include "frame/flags.h"
#include "frame/json.h"
#include "frame/natural_order.h"
#include "frame/usage_error.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>

namespace attend::cli {
namespace {

constexpr const char* kSafetensors = ".safetensors";
constexpr std::int64_t kFew = 64;  // elements that are printed
constexpr std::size_t kMostText = std::size_t{1} << 30;

template <class T, class Number>
Tensor tensor_of(const std::vector<Number>& numbers, const Shape& shape) {
  Tensor tensor = Tensor::uninitialized(shape, dtype_of<T>());
  std::transform(numbers.begin(), numbers.end(), tensor.data<T>(),
                 [](Number x) { return static_cast<T>(x); });
  return tensor;
}

Tensor tensor_of(const std::vector<double>& numbers, const Shape& shape, DType type) {
  switch (type) {
    case DType::f64: return tensor_of<double>(numbers, shape);
    case DType::f32: return tensor_of<float>(numbers, shape);
    case DType::bf16: return tensor_of<bf16>(numbers, shape);
    default: return tensor_of<f16>(numbers, shape);
  }
}

// Whether a text names a file of tensors, or a tensor in one.
bool is_place(const std::string& text) {
  return text.ends_with(".npy") || text.ends_with(kSafetensors) ||
         text.find(std::string(kSafetensors) + ":") != std::string::npos;
}

}  // namespace

TensorPlace place_of(const std::string& text) {
  if (text.ends_with(".npy")) return {text, "", true};
  const std::size_t at = text.rfind(std::string(kSafetensors) + ":");
  if (at != std::string::npos) {
    const std::size_t colon = at + std::string(kSafetensors).size();
    if (colon + 1 == text.size())
      throw UsageError("'" + text + "' names no tensor after the colon");
    return {text.substr(0, colon), text.substr(colon + 1), false};
  }
  if (text.ends_with(kSafetensors)) return {text, "", false};
  throw UsageError("'" + text + "' must end in .npy or .safetensors, or be FILE.safetensors:NAME");
}

Tensor load_tensor(const std::string& source) {
  const TensorPlace place = place_of(source);
  if (place.npy) return load_npy(place.path);
  TensorFile file = load_safetensors(place.path);
  if (place.name.empty() && file.tensors.size() == 1) return std::move(file.tensors[0].tensor);
  if (!place.name.empty()) return file.at(place.name);
  if (file.tensors.empty()) throw UsageError(place.path + " holds no tensors");
  std::vector<std::string> all;
  for (const NamedTensor& named : file.tensors) all.push_back(named.name);
  std::sort(all.begin(), all.end(), natural_less);
  std::string names;
  for (const std::string& name : all) names += " " + name;
  throw UsageError(place.path + " holds " + std::to_string(file.tensors.size()) +
                   " tensors; say which: " + place.path + ":NAME with one of" + names);
}

TensorFile load_file(const std::string& path, const std::string& instead_of_npy) {
  std::array<char, 6> magic{};
  std::ifstream(path, std::ios::binary).read(magic.data(), magic.size());
  if (std::string_view(magic.data(), magic.size()) == "\x93NUMPY")
    throw UsageError(path + " is an npy file; " + instead_of_npy);
  return load_safetensors(path);
}

Tensor load_list(const std::string& source, std::optional<DType> type) {
  if (!type) {
    if (const auto whole = whole_numbers_in(source))
      return tensor_of<std::int64_t>(*whole, {static_cast<std::int64_t>(whole->size())});
  } else if (const auto numbers = real_numbers_in(source)) {
    return tensor_of(*numbers, {static_cast<std::int64_t>(numbers->size())}, *type);
  }
  return load_tensor(source);
}

Flag add_list(Flags& flags, const std::string& name, std::string& value, bool real,
              const std::string& description) {
  return flags.add_text(name, value, description)
      .check([real](const std::string& word) {
        if (is_place(word) || (real ? !!real_numbers_in(word) : !!whole_numbers_in(word)))
          return std::string();
        return "'" + word + "' is neither a list of " + (real ? "finite" : "whole") +
               " numbers, as in 5,3, nor a file .npy or .safetensors";
      })
      .value("FILE|N,N");
}

std::string read_text(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored))
    throw UsageError(path + " cannot be read: it is a folder");
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) throw UsageError(path + ": cannot be opened: " + std::strerror(errno));
  std::string text;
  std::vector<char> part(1 << 16);
  while (file.read(part.data(), std::ssize(part)), file.gcount() > 0) {
    text.append(part.data(), static_cast<std::size_t>(file.gcount()));
    if (text.size() > kMostText) throw UsageError(path + " cannot be read: it is over 1 GiB");
  }
  if (file.bad()) throw UsageError(path + " cannot be read");
  return text;
}

Tensor converted(Tensor tensor, DType type) {
  if (!is_floating_point(tensor.dtype()) || tensor.dtype() == type) return tensor;
  return tensor_of(oracle::widen(tensor), tensor.shape(), type);
}

Tensor drawn(const Shape& shape, DType type, std::uint64_t seed, std::uint64_t stream) {
  Tensor numbers = Tensor::uninitialized(shape, DType::f64);
  const cases::Random random(seed, stream);
  double* x = numbers.data<double>();
  for (std::int64_t n = 0; n < numbers.count(); ++n)
    x[n] = random.gaussian(static_cast<std::uint64_t>(n));
  return converted(std::move(numbers), type);
}

Summary summary_of(const Tensor& tensor) {
  Summary summary;
  double sum = 0;
  std::int64_t finite = 0;
  for (const double x : oracle::widen(tensor)) {
    if (!std::isfinite(x)) {
      ++summary.not_finite;
      continue;
    }
    summary.min = finite == 0 ? x : std::min(summary.min, x);
    summary.max = finite == 0 ? x : std::max(summary.max, x);
    sum += x;
    ++finite;
  }
  if (finite > 0) summary.mean = sum / static_cast<double>(finite);

  std::uint64_t hash = 0xcbf29ce484222325u;
  const auto* byte = static_cast<const unsigned char*>(tensor.view().data());
  for (std::int64_t n = 0; n < tensor.count() * size_of(tensor.dtype()); ++n)
    hash = (hash ^ byte[n]) * 0x100000001b3u;
  char digits[24];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(hash));
  summary.checksum = digits;
  return summary;
}

bool is_small(const Tensor& tensor) { return tensor.count() <= kFew; }

Json json_of(const Tensor& tensor, const Summary& summary) {
  Json object = {{"shape", std::vector<std::int64_t>(tensor.shape().begin(), tensor.shape().end())},
                 {"type", name_of(tensor.dtype())},
                 {"min", summary.min},
                 {"max", summary.max},
                 {"mean", summary.mean},
                 {"not_finite", summary.not_finite},
                 {"checksum", summary.checksum}};
  if (is_small(tensor)) object["values"] = oracle::widen(tensor);
  return object;
}

std::string text_of(const Tensor& tensor, const Summary& summary) {
  char numbers[160];
  std::snprintf(numbers, sizeof numbers, "  min %.6g  max %.6g  mean %.6g", summary.min,
                summary.max, summary.mean);
  std::string text = std::string(name_of(tensor.dtype())) + " " + to_string(tensor.shape());
  if (tensor.count() > summary.not_finite) text += numbers;
  if (summary.not_finite > 0) text += "  not finite " + std::to_string(summary.not_finite);
  return text + "  checksum " + summary.checksum;
}

void print_values(const Tensor& tensor) {
  const std::vector<double> values = oracle::widen(tensor);
  const std::int64_t rank = tensor.view().rank(),
                     width = rank == 0 ? 1 : tensor.size(static_cast<int>(rank) - 1);
  std::int64_t column = 0;
  char digits[32];
  for (const double x : values) {
    std::snprintf(digits, sizeof digits, "%12.7g", x);
    std::cout << digits << (++column % width == 0 ? "\n" : " ");
  }
}

}  // namespace attend::cli
