// A line of the baseline: what was computed, and a hash of the bits of each result.
#pragma once

#include <attend/attend.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace attend::baseline {

// 64 bits of the elements in row-major order, wherever they lie: FNV-1a.
std::uint64_t hash_of(const ConstTensorView& view);

class Line {
 public:
  explicit Line(std::string name) : text_(std::move(name)) {}
  Line& add(std::string_view what, const ConstTensorView& view);  // nothing for a view of nothing
  Line& add(std::string_view what, const std::vector<double>& values);
  Line& add(const std::vector<NamedTensor>& list);
  void print() const;

 private:
  std::string text_;
};

struct Settings {
  bool reduced = false;
  std::vector<std::string> kernels;  // words that a kernel's name contains one of; empty: all
  bool takes(const std::string& kernel) const;
};

void print_attention(const Settings& settings, Context& context);
void print_layers(Context& context);
void print_training(Context& context);

}  // namespace attend::baseline
