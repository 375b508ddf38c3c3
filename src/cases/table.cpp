// The table: shapes first, then every option, then what real models ask for; and its reduced form.
#include "table.h"

#include <attend/option_list.h>

#include <algorithm>
#include <set>

namespace attend::cases {
namespace {

// What models ask for, written as names.
constexpr const char* kModels[] = {
    // GPT: causal self-attention, trained with dropout.
    "batch=2 heads=3 kv_heads=3 q=50 k=50 d=64 dv=64 layout=interleaved causal=1 dropout=0.1",
    // BERT: padding as a mask, and as lengths.
    "batch=3 heads=2 kv_heads=2 q=40 k=40 d=32 dv=32 layout=bthd mask=per_key weights=1",
    "batch=5 heads=2 kv_heads=2 q=34 k=34 d=32 dv=32 layout=bthd key_lengths=mixed",
    // From decoder to encoder.
    "batch=2 heads=4 kv_heads=4 q=13 k=70 d=40 dv=40 key_lengths=full mask=per_key mask_type=i64",
    // T5: a relative position bias per head. BLOOM: ALiBi.
    "batch=2 heads=3 kv_heads=3 q=30 k=30 d=24 dv=24 bias=head_query_key scale=1",
    "batch=2 heads=6 kv_heads=6 q=25 k=25 d=16 dv=16 causal=1 alibi=1",
    // Mistral: a sliding window. Gemma: softcap and window. GPT-OSS: sinks and window.
    "heads=4 q=90 k=90 d=16 dv=16 causal=1 window_left=32",
    "heads=4 kv_heads=2 q=70 k=70 d=32 dv=32 causal=1 window_left=20 softcap=50",
    "heads=4 q=66 k=66 d=16 dv=16 causal=1 window_left=31 sinks=1 dlse=1",
    // Llama: grouped heads; a whole prompt, a chunk of it, decoding; decoding a long one.
    "batch=2 heads=8 kv_heads=2 q=77 k=77 d=32 dv=32 layout=bthd causal=1",
    "batch=2 heads=8 kv_heads=2 q=24 k=77 d=32 dv=32 layout=bthd causal=1",
    "batch=2 heads=8 kv_heads=2 q=1 k=77 d=32 dv=32 layout=bthd causal=1",
    "batch=2 heads=5 q=1 k=600 d=64 dv=64 key_lengths=mixed",
    // Looking at what one query of a long cache attends to.
    "batch=2 heads=2 kv_heads=2 q=1 k=400 d=32 dv=32 weights=1 scores=1",
    // Serving: pages with a common prefix, and a chunk of a prompt on pages.
    "batch=5 heads=6 kv_heads=2 q=1 k=150 d=64 dv=64 addressing=paged_shared key_lengths=mixed "
    "causal=1",
    "batch=4 heads=4 kv_heads=2 q=20 k=60 d=32 dv=32 addressing=paged key_lengths=full causal=1 "
    "window_left=40 sinks=1",
    // Training on packed sequences.
    "batch=5 heads=3 kv_heads=3 q=48 k=48 d=32 dv=32 layout=interleaved addressing=packed_self "
    "causal=1 dropout=0.1",
    // DeepSeek: d != dv. BigBird: blocks.
    "batch=2 heads=4 kv_heads=4 q=17 k=45 d=192 dv=128 causal=1",
    "batch=2 heads=2 kv_heads=2 q=70 k=70 d=32 dv=32 causal=1 blocks=shared",
};

// What came later. Here, so that the seeds of those above stay what they are.
constexpr const char* kLater[] = {
    // Packed sequences whose longest is not as long as the caller says.
    "batch=4 heads=4 kv_heads=2 q=19 k=37 d=12 dv=10 addressing=packed max_q=30 max_k=61 "
    "mask=full bias=full blocks=full weights=1 scores=1",
    "batch=4 heads=4 kv_heads=2 q=19 k=37 d=12 dv=10 addressing=packed max_q=19 max_k=300 causal=1 "
    "weights=1 scores=1 stage=raw dlse=1",
    "batch=3 heads=2 q=19 k=19 d=12 dv=10 addressing=packed_self max_q=40 causal=1 bias=per_key "
    "sinks=1 weights=1",
    "batch=3 heads=2 q=19 k=37 d=12 dv=10 addressing=packed_paged max_q=33 key_lengths=mixed "
    "mask=rows scores=1 dropout=0.2",
    "batch=0 heads=2 kv_heads=2 d=12 dv=10 addressing=packed max_q=3 max_k=5 weights=1",
    // Keys and values of types of their own: 16 bits under f32, f64, and a KV cache of 8 bits.
    "batch=2 heads=4 kv_heads=2 q=19 k=37 d=12 dv=10 k_type=bf16 v_type=f16 bias=full weights=1",
    "batch=2 heads=4 kv_heads=2 q=19 k=37 d=12 dv=10 k_type=f16 layout=padded causal=1",
    "batch=2 heads=4 kv_heads=2 q=19 k=37 d=12 dv=10 k_type=i8 k_scales=1 scores=1 stage=raw",
    "batch=3 heads=4 kv_heads=2 q=1 k=50 d=16 dv=16 addressing=paged key_lengths=mixed k_type=i8 "
    "v_type=i8 k_scales=1 v_scales=1 causal=1 sinks=1",
    "batch=3 heads=4 kv_heads=2 q=9 k=30 d=16 dv=8 addressing=packed v_type=i8 v_scales=1 "
    "mask=full "
    "weights=1 dlse=1",
};

// Ways through the kernels that no case above goes (tests/paths_test.cpp finds them), and mistakes
// that no case above shows (tools/mutants.py).
constexpr const char* kPaths[] = {
    // A long decode, whose keys are cut into pieces: sequences that end anywhere, where a chunk of
    // 256 keys does, and chunks that are hidden as a whole.
    "batch=4 heads=2 q=1 k=1100 d=16 dv=16 key_lengths=mixed",
    "heads=2 q=1 k=1100 d=16 dv=16 causal=1 query_offset=one offset=511",
    "heads=2 q=1 k=2100 d=8 dv=8 blocks=shared block_k=256",
    // What they attend to.
    "batch=3 heads=4 kv_heads=2 q=1 k=1100 d=16 dv=16 key_lengths=mixed weights=1 scores=1",
    // Few rows, of which the last sees a key more, and with many features.
    "heads=2 q=2 k=200 d=16 dv=16 causal=1",
    "heads=2 q=1 k=150 d=320 dv=16",
    // Gradients of a head in segments that one task goes through.
    "batch=2 heads=4 kv_heads=4 q=130 k=20 d=16 dv=16",
    // One key of a long decode that weighs all; a softcap over several chunks.
    "batch=4 heads=2 q=1 k=200 d=16 dv=16 scale=60",
    "heads=2 q=3 k=300 d=8 dv=8 softcap=2",
    // A window that begins within a block.
    "heads=2 q=40 k=90 d=8 dv=8 window_left=21 blocks=shared block_q=8",
    // A KV cache of 8 bits: a long decode, few rows of many features, pages, tiles of many rows.
    "heads=2 q=1 k=1100 d=16 dv=16 k_type=i8 v_type=i8 k_scales=1 v_scales=1",
    "heads=4 kv_heads=2 q=1 k=300 d=320 dv=16 k_type=i8 v_type=i8 k_scales=1 v_scales=1",
    "batch=3 heads=4 q=2 k=300 d=32 dv=32 addressing=paged key_lengths=mixed k_type=i8 k_scales=1",
    "heads=2 q=70 k=300 d=24 dv=40 k_type=i8 v_type=i8 k_scales=1 v_scales=1 causal=1 dropout=0.2",
    "heads=2 q=130 k=40 d=300 dv=24 k_type=i8 v_type=i8 k_scales=1 v_scales=1 scores=1",
    "batch=3 heads=4 kv_heads=2 q=70 k=300 d=32 dv=32 addressing=paged key_lengths=mixed k_type=i8 "
    "v_type=i8 k_scales=1 v_scales=1 causal=1",
    "batch=3 heads=4 kv_heads=2 q=1 k=300 d=32 dv=32 addressing=paged page_size=24 "
    "key_lengths=mixed k_type=i8 v_type=i8 k_scales=1 v_scales=1",
    "batch=3 heads=4 kv_heads=2 q=70 k=300 d=32 dv=16 addressing=packed k_type=i8 v_type=i8 "
    "k_scales=1 v_scales=1 causal=1",
    "batch=3 heads=4 kv_heads=2 q=70 k=300 d=16 dv=32 addressing=packed_paged key_lengths=mixed "
    "k_type=i8 v_type=i8 k_scales=1 v_scales=1",
    "heads=4 kv_heads=2 q=1 k=300 d=32 dv=32 layout=transposed k_type=i8 v_type=i8 k_scales=1 "
    "v_scales=1 window_left=140 causal=1",
    "heads=4 kv_heads=2 q=40 k=300 d=32 dv=32 layout=reversed k_type=i8 v_type=i8 k_scales=1 "
    "v_scales=1",
    // Few rows against keys and values of 16 bits, or keys alone.
    "heads=2 q=1 k=1100 d=16 dv=16 k_type=f16 v_type=f16",
    "heads=4 kv_heads=2 q=1 k=300 d=320 dv=24 k_type=bf16 v_type=bf16",
    "heads=2 q=1 k=150 d=16 dv=16 k_type=f16",
};

// Each option of one number a key, in every place where keys may be.
void add_key_tensors(Cases& cases) {
  const AttentionOptions all;
  for_each_option(all, [&](const Option& option, const auto&) {
    if (option.kind != OptionKind::key_tensor) return;
    for (const char* line :
         {"weights=1 scores=1 stage=raw", "layout=padded causal=1 sinks=1 dlse=1 bias=full",
          "addressing=packed softcap=4 weights=1", "addressing=paged_shared key_lengths=mixed",
          "addressing=paged page_size=5 key_lengths=mixed mask=full dropout=0.2"})
      cases.push_back(parse(std::string(option.name) + "=1 " + line, small()));
  });
}

// The words of a name that say an option: sizes only if zero, and numbers only that they are given.
std::set<std::string> option_words(const Case& problem) {
  Case options = problem;
  options.seed = Case().seed;
  const std::string line = name(options);
  std::set<std::string> words;
  std::size_t begin = 0;
  while (begin < line.size()) {
    const std::size_t end = std::min(line.find(' ', begin), line.size());
    std::string word = line.substr(begin, end - begin);
    const std::size_t value = word.find('=') + 1;
    const bool number = word.find_first_not_of("0123456789.e-", value) == std::string::npos;
    if (number && word.substr(value) != "0") word.resize(value);
    words.insert(word);
    begin = end + 1;
  }
  return words;
}

}  // namespace

std::vector<Case> table() {
  Cases cases;
  add_shapes(cases);
  add_options(cases);
  for (const char* model : kModels) cases.push_back(parse(model));
  for (const char* later : kLater) cases.push_back(parse(later));
  add_key_tensors(cases);
  for (const char* path : kPaths) cases.push_back(parse(path));
  std::uint64_t seed = 0;
  for (Case& problem : cases) problem.seed = ++seed;
  return cases;
}

std::vector<Case> reduced_table() {
  // From the back, where cases are richest: those that say something no case before them said.
  Cases all = table(), kept;
  std::reverse(all.begin(), all.end());
  constexpr std::int64_t kAffordable = 150'000;
  std::set<std::string> said;
  for (const Case& problem : all) {
    if (cost(problem) > kAffordable) continue;
    const std::size_t before = said.size();
    said.merge(option_words(problem));
    if (said.size() > before) kept.push_back(problem);
  }
  return kept;
}

}  // namespace attend::cases
