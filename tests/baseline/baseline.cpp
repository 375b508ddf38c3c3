// Writes a line for every result that a change of the code may not change: each kernel on each case
// of the table, the layers with their gradients, 20 steps of training.
//
//   baseline > before.txt    before a change
//   baseline | diff before.txt -    after it: no line differs if all bits are the same
//
//   --reduced         the reduced table, for emulators
//   --kernels WORDS   only kernels whose names contain one of them: avx2,generic
//   --threads N       lines do not depend on it
#include "lines.h"

#include "core/strided.h"

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace attend::baseline {
namespace {

constexpr std::uint64_t kStart = 0xcbf29ce484222325, kPrime = 0x100000001b3;

std::uint64_t hash_bytes(std::uint64_t hash, const void* data, std::size_t count) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  for (std::size_t n = 0; n < count; ++n) hash = (hash ^ bytes[n]) * kPrime;
  return hash;
}

std::string in_hex(std::uint64_t hash) {
  char text[20];
  std::snprintf(text, sizeof text, "%016" PRIx64, hash);
  return text;
}

}  // namespace

std::uint64_t hash_of(const ConstTensorView& view) {
  const Tensor copy = Tensor::copy_of(view);
  return hash_bytes(kStart, copy.view().data(),
                    static_cast<std::size_t>(copy.count() * size_of(copy.dtype())));
}

Line& Line::add(std::string_view what, const ConstTensorView& view) {
  if (view) text_ += " " + std::string(what) + "=" + in_hex(hash_of(view));
  return *this;
}

Line& Line::add(std::string_view what, const std::vector<double>& values) {
  text_ += " " + std::string(what) + "=" +
           in_hex(hash_bytes(kStart, values.data(), values.size() * sizeof(double)));
  return *this;
}

Line& Line::add(const std::vector<NamedTensor>& list) {
  for (const NamedTensor& item : list) add(item.name, item.tensor);
  return *this;
}

void Line::print() const { std::puts(text_.c_str()); }

bool Settings::takes(const std::string& kernel) const {
  if (kernels.empty()) return true;
  for (const std::string& word : kernels)
    if (kernel.find(word) != std::string::npos) return true;
  return false;
}

}  // namespace attend::baseline

int main(int argc, char** argv) {
  attend::baseline::Settings settings;
  attend::ContextOptions options;
  for (int n = 1; n < argc; ++n) {
    const bool more = n + 1 < argc;
    if (std::strcmp(argv[n], "--reduced") == 0) {
      settings.reduced = true;
    } else if (std::strcmp(argv[n], "--threads") == 0 && more) {
      options.threads = std::atoi(argv[++n]);
    } else if (std::strcmp(argv[n], "--kernels") == 0 && more) {
      for (char* word = std::strtok(argv[++n], ","); word; word = std::strtok(nullptr, ","))
        settings.kernels.emplace_back(word);
    } else {
      std::fprintf(stderr,
                   "baseline: unknown argument %s; --reduced, --kernels WORDS, --threads N\n",
                   argv[n]);
      return 2;
    }
  }
  attend::Context context(options);
  attend::baseline::print_attention(settings, context);
  attend::baseline::print_layers(context);
  attend::baseline::print_training(context);
  return std::fflush(stdout) == 0 ? 0 : 1;
}
