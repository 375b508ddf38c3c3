// A layer from a file, then a sequence token by token with a KV cache. Each token costs one row,
// and the outputs have the bits of the whole sequence at once.
//   kv_cache [FOLDER]   where the file goes, by default the current folder
#include "print.h"

#include <attend/attend.h>

#include <cmath>
#include <cstdio>
#include <string>

namespace {

bool run(const std::string& file) {
  // Two sequences of 12 tokens, width 32; a layer with GQA and RoPE, to have a file to load.
  attend::Tensor x({2, 12, 32});
  for (std::int64_t n = 0; n < x.count(); ++n)
    x.data<float>()[n] = static_cast<float>(std::sin(0.3 * static_cast<double>(n)));
  attend::MultiHeadAttention(
      {.model_dim = 32, .heads = 4, .key_heads = 2, .rotary = attend::Rotary{}})
      .save(file);

  // [kv_cache]
  // A file of another library does not say how many heads it has: load(file, {.heads = 4}).
  const auto layer = attend::MultiHeadAttention::load(file);
  const attend::Tensor whole = layer.forward(x, {.causal = true});  // [2, 12, 32]

  attend::KvCache cache = layer.make_cache(/*batch=*/2, /*capacity=*/12);
  bool same = true;
  for (std::int64_t i = 0; i < 12; ++i) {
    const attend::Tensor y = layer.forward(x.view().slice(1, i, i + 1), cache, {.causal = true});
    for (std::int64_t b = 0; b < 2; ++b)
      for (std::int64_t c = 0; c < 32; ++c)
        same &= y.at<float>({b, 0, c}) == whole.at<float>({b, i, c});
  }
  // [/kv_cache]

  std::string refused;
  try {  // a full cache refuses, and stays as it was
    (void)layer.forward(x.view().slice(1, 0, 1), cache, {.causal = true});
  } catch (const attend::InvalidArgument& error) {
    refused = error.what();
  }
  std::printf("   %s\n", refused.c_str());
  return print::check(same, "token by token gives the bits of the whole") &&
         print::check(!refused.empty() && cache.length(0) == 12, "a full cache says so");
}

}  // namespace

int main(int count, char** arguments) {
  try {
    return run(std::string(count > 1 ? arguments[1] : ".") + "/kv_cache_layer.safetensors") ? 0 : 1;
  } catch (const attend::Error& error) {
    std::fprintf(stderr, "kv_cache: %s\n", error.what());
    return 1;
  }
}
