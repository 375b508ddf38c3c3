// Calls of the library that the faults happen to: what they read, what they may write, and how they
// end. Between the start of a call and its end nothing but the library allocates.
#pragma once

#include "cases/cases.h"
#include "support/property_trial.h"

#include <attend/attend.h>

#include <filesystem>
#include <string>
#include <vector>

namespace attend::test {

inline const MultiHeadAttentionOptions kLayer{.model_dim = 12, .heads = 3};

// A temporary one, removed when the program ends.
const std::filesystem::path& folder();

// Everything a call reads, and what it may write, filled with a number that nobody computes.
struct Work {
  explicit Work(const cases::Case& problem);
  Trial trial;
  Written written;
  Written out;  // what backward reads
  Arguments arguments;
  std::vector<ConstTensorView> o, lse;  // what merge reads
  Tensor x;                             // what layers read
  std::filesystem::path path;
  Tensor given[3];  // new tensors
};

enum class Call { forward, backward, inspect, window, merge, layer, block, file };
inline constexpr std::initializer_list<Call> kCalls = {Call::forward, Call::backward, Call::inspect,
                                                       Call::window,  Call::merge,    Call::layer,
                                                       Call::block,   Call::file};
const char* name_of_call(Call call);

void run_call(Call call, Work& work, Context& context);

// What it gave; and the same by a Context that nothing happens to.
std::vector<Tensor> results_of(const Work& work);
std::vector<Tensor> expected_of(Call call, const cases::Case& problem);
std::string difference_of_all(const std::vector<Tensor>& a, const std::vector<Tensor>& b);

// Whether nothing of what a call may write has been written.
bool untouched(const Work& work);

// The class of what a call throws, "" if it returns; allocation `failing` of it fails.
std::string thrown(Call call, Work& work, Context& context, std::size_t failing = 0);

}  // namespace attend::test
