// Times one case at a time, when it is told to: half of bench/pairs.py, which runs two builds of
// this in turns. The suites are those of `attend bench`, and besides them
//
//   call           calls that compute next to nothing: what the way to the kernel costs
//   norm, feed_forward, block      what layers are made of
//   weights        one token and few, with the weights of the type and of 8 bits
//   pages          decode/B8_H32_K8_Q1_T2048_d128 with its keys on pages
//
// The target of this name builds it. It uses nothing that 0.1 does not have, so that an older tree
// is measured by this file and that tree's own way to make a case ready:
//
//   g++ -std=c++20 -O2 cli/bench/turns.cpp TREE/cli/bench/work.cpp -I TREE/{include,src,cli}
//       TREE/build/release/src/lib{attend_cases,attend}.a -lz -pthread
//
// Before commands had folders, that tree's file was TREE/cli/bench_work.cpp.
//
// On one thread, or as many as ATTEND_THREADS says; in f32, or in the type that its argument names
// (an older tree's `layer` is f32 in any case). First it prints the names of all cases in one line;
// then for each name that it reads the seconds of one call.
#include "bench.h"

#include <attend/attend.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace {

using namespace attend;

using Call = std::function<void()>;
using Cases = std::map<std::string, std::function<Call()>>;  // how each is made ready

// Seconds of one call: the median over 7 batches, each of so many calls that it takes 4 ms.
double seconds_of(const Call& call, long& calls) {
  using Clock = std::chrono::steady_clock;
  const auto batch = [&] {
    const Clock::time_point begin = Clock::now();
    for (long n = 0; n < calls; ++n) call();
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };
  if (calls == 0)
    for (calls = 1; batch() < 0.004;) calls *= 2;
  std::vector<double> times(calls > 1 ? 7 : 3);
  batch();
  for (double& time : times) time = batch() / static_cast<double>(calls);
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

template <class Element>
void fill(Tensor& tensor) {
  for (std::int64_t i = 0; i < tensor.count(); ++i)
    tensor.data<Element>()[i] = Element(static_cast<float>(i * 7919 % 2001 - 1000) / 1000);
}

// Anything but zeros.
Tensor numbers(const Shape& shape, DType type) {
  Tensor tensor(shape, type);
  if (type == DType::f64) fill<double>(tensor);
  else if (type == DType::f32) fill<float>(tensor);
  else if (type == DType::bf16) fill<bf16>(tensor);
  else fill<f16>(tensor);
  return tensor;
}

template <class Layer>
Call forward_of(const Layer& layer, const Tensor& x) {
  return [layer = std::make_shared<Layer>(layer), x] { layer->forward(x); };
}

template <class Layer>
Call train_of(const Layer& layer, const Tensor& x) {
  return [layer = std::make_shared<Layer>(layer), x] {
    const auto [y, saved] = layer->forward_train(x);
    layer->backward(x, saved);
  };
}

// Of an older tree, which has no such weights, as it is.
template <class Layer>
Layer of_8_bits(const Layer& layer) {
  if constexpr (requires { layer.quantize(); }) return layer.quantize();
  else return layer;
}

Call smallest_attention(DType type) {
  const Shape shape{1, 1, 1, 8};
  return [q = numbers(shape, type), out = std::make_shared<Tensor>(shape, type)] {
    attention(q, q, q, *out);
  };
}

Call decode_on_pages(std::int64_t page, DType type) {
  constexpr std::int64_t kBatch = 8, kHeads = 8, kKeys = 2048, kWidth = 128;
  const std::int64_t each = kKeys / page;
  Tensor table({kBatch, each}, DType::i64);
  for (std::int64_t n = 0; n < table.count(); ++n)  // not one behind the other
    table.data<std::int64_t>()[n] = (n * 5 + 3) % table.count();
  Tensor lengths({kBatch}, DType::i64);
  std::fill_n(lengths.data<std::int64_t>(), kBatch, kKeys);
  const Shape keys{kBatch * each, kHeads, page, kWidth}, rows{kBatch, 4 * kHeads, 1, kWidth};
  return [q = numbers(rows, type), k = numbers(keys, type), v = numbers(keys, type), table, lengths,
          out = std::make_shared<Tensor>(rows, type)] {
    AttentionOptions options;
    options.block_table = table;
    options.key_lengths = lengths;
    attention(q, k, v, *out, options);
  };
}

AttentionBlock block(bool rotary, DType type) {
  MultiHeadAttentionOptions attention{.model_dim = 512, .heads = 8, .type = type};
  if (rotary) attention.rotary.emplace();
  return AttentionBlock({.attention = attention, .hidden_dim = 2048});
}

Cases all_cases(DType type) {
  const Tensor row = numbers({1, 512}, type), rows = numbers({2, 64, 512}, type);
  const LayerNormOptions norm{.dim = 512, .type = type};
  Cases cases;
  cases["call/attention_B1_H1_T1_d8"] = [=] { return smallest_attention(type); };
  cases["call/linear_512"] = [=] {
    return forward_of(Linear({.in = 512, .out = 512, .type = type}), row);
  };
  cases["call/layer_norm_512"] = [=] { return forward_of(LayerNorm(norm), row); };
  cases["call/layer_64"] = [=] {
    return forward_of(MultiHeadAttention({.model_dim = 64, .heads = 4, .type = type}),
                      numbers({1, 1, 64}, type));
  };
  cases["norm/layer_norm"] = [=] { return forward_of(LayerNorm(norm), rows); };
  cases["norm/layer_norm_train"] = [=] { return train_of(LayerNorm(norm), rows); };
  cases["norm/rms_norm"] = [=] { return forward_of(RMSNorm({.dim = 512, .type = type}), rows); };
  for (const auto& [name, activation] : {std::pair("relu", Activation::relu),
                                         {"gelu", Activation::gelu},
                                         {"gelu_tanh", Activation::gelu_tanh},
                                         {"swiglu", Activation::swiglu}}) {
    const FeedForwardOptions options{
        .model_dim = 512, .hidden_dim = 2048, .activation = activation, .type = type};
    const std::string full = std::string("feed_forward/") + name;
    cases[full] = [=] { return forward_of(FeedForward(options), rows); };
    cases[full + "_train"] = [=] { return train_of(FeedForward(options), rows); };
  }
  for (const bool rotary : {false, true}) {
    const std::string full = rotary ? "block/rotary" : "block/plain";
    cases[full] = [=] { return forward_of(block(rotary, type), rows); };
    cases[full + "_train"] = [=] { return train_of(block(rotary, type), rows); };
  }
  for (const std::int64_t page : {16, 64, 256})
    cases["pages/decode_" + std::to_string(page)] = [=] { return decode_on_pages(page, type); };
  for (const std::int64_t tokens : {1, 4, 64}) {
    const std::string full = "weights/linear_4096_T" + std::to_string(tokens);
    const LinearOptions options{.in = 4096, .out = 4096, .type = type};
    const Tensor x = numbers({tokens, 4096}, type);
    cases[full] = [=] { return forward_of(Linear(options), x); };
    cases[full + "_i8"] = [=] { return forward_of(of_8_bits(Linear(options)), x); };
  }
  for (attend::cases::BenchCase measured : attend::cases::bench_table()) {
    const std::string full = name(measured);  // that of f32, which two trees call the same
    measured.problem.type = type;
    cases[full] = [=] { return cli::prepare(measured, default_context()).run; };
  }
  return cases;
}

// Of "bf16"; nothing if there is no such type.
std::optional<DType> type_of(std::string_view word) {
  for (const DType type : attend::cases::kTypes)
    if (name_of(type) == word) return type;
  return {};
}

}  // namespace

int main(int count, char** words) {
  setenv("ATTEND_THREADS", "1", 0);  // before the default Context is made
  const std::optional<DType> type = type_of(count > 1 ? words[1] : "f32");
  if (!type) return 2;
  const Cases cases = all_cases(*type);
  for (const auto& [name, make] : cases) std::printf("%s ", name.c_str());
  std::printf("\n");
  std::fflush(stdout);
  std::string name, ready;
  Call call;
  long calls = 0;
  while (std::getline(std::cin, name)) {
    if (!cases.contains(name)) return 2;
    if (name != ready) {
      call = {};
      call = cases.at(ready = name)();
      calls = 0;
    }
    std::printf("%.12g\n", seconds_of(call, calls));
    std::fflush(stdout);
  }
}
