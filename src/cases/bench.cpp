#include "bench.h"

#include <algorithm>

namespace attend::cases {
namespace {

using Table = std::vector<BenchCase>;
enum class When : std::uint8_t { always, full };  // in the short run as well, or not

// Self-attention of `length` tokens.
Case square(std::int64_t batch, std::int64_t heads, std::int64_t length, std::int64_t d,
            bool causal = false) {
  Case problem;
  problem.batch = batch;
  problem.heads = problem.kv_heads = heads;
  problem.q_length = problem.k_length = length;
  problem.d = problem.dv = d;
  problem.causal = causal;
  problem.lse = false;
  return problem;
}

// One new token against a cache.
Case decode(std::int64_t batch, std::int64_t heads, std::int64_t key_heads, std::int64_t keys) {
  Case problem = square(batch, heads, keys, 128);
  problem.kv_heads = key_heads;
  problem.q_length = 1;
  return problem;
}

void add(Table& table, const char* suite, const Case& problem, When when = When::full,
         Operation operation = Operation::forward) {
  table.push_back({suite, operation, problem, when == When::always});
}

void add_forward(Table& table) {
  add(table, "notes", square(2, 8, 10, 64), When::always);
  add(table, "notes", square(32, 8, 10, 64), When::always);
  add(table, "notes", square(32, 8, 20, 64), When::always);
  add(table, "bert", square(8, 12, 128, 64), When::always);
  add(table, "bert", square(1, 12, 512, 64));
  add(table, "gpt", square(1, 12, 512, 64, true), When::always);
  add(table, "gpt", square(1, 12, 1024, 64, true));
  add(table, "gpt", square(1, 16, 1024, 128, true));
  add(table, "gpt", square(1, 16, 2048, 64, true));
  add(table, "gpt", square(1, 16, 2048, 128, true));
  for (const std::int64_t length : {2048, 4096})
    for (const std::int64_t d : {64, 128})
      for (const bool causal : {false, true})
        add(table, "long", square(1, 4, length, d, causal),
            length == 2048 && d == 64 ? When::always : When::full);
  add(table, "decode", decode(1, 32, 32, 4096));
  add(table, "decode", decode(1, 32, 8, 8192), When::always);
  add(table, "decode", decode(8, 32, 8, 2048));
}

void add_backward(Table& table) {
  const auto add_case = [&](const Case& problem, When when = When::full) {
    add(table, "backward", problem, when, Operation::backward);
  };
  add_case(square(2, 8, 10, 64), When::always);
  add_case(square(32, 8, 10, 64));
  add_case(square(32, 8, 20, 64), When::always);
  add_case(square(8, 12, 128, 64), When::always);
  add_case(square(1, 12, 512, 64));
  add_case(square(1, 12, 512, 64, true));
  add_case(square(1, 12, 1024, 64, true));
  add_case(square(1, 16, 1024, 128, true));
  add_case(square(1, 4, 2048, 64));
  add_case(square(1, 4, 2048, 128, true));
}

// 8 heads of 64 in a width of 512.
void add_layers(Table& table) {
  constexpr std::pair<std::int64_t, std::int64_t> kSizes[] = {{1, 1},   {2, 10},  {32, 10},
                                                              {32, 20}, {8, 128}, {4, 512}};
  for (const Operation operation : {Operation::layer, Operation::layer_train})
    for (const auto& [batch, length] : kSizes)
      add(table, "layer", square(batch, 8, length, 64),
          batch * length == 20 || length == 20 ? When::always : When::full, operation);
}

void add_sweeps(Table& table) {
  for (const bool causal : {false, true})
    for (std::int64_t length = 16; length <= 2048; length *= 2)  // 2048 tokens in all
      add(table, "length", square(2048 / length, 8, length, 64, causal),
          length <= 256 ? When::always : When::full);
  for (std::int64_t length = 1024; length <= 131072; length *= 2)
    add(table, "growth", square(1, 1, length, 64), length <= 8192 ? When::always : When::full);
}

// Each of them beside the attention that its cost is compared with.
void add_inspect(Table& table) {
  for (const std::int64_t length : {1024, 2048})
    for (const std::int64_t d : {64, 128})
      for (const bool causal : {false, true})
        for (const Operation operation : {Operation::forward, Operation::inspect_rows,
                                          Operation::inspect_top, Operation::inspect_all})
          add(table, "inspect", square(1, 4, length, d, causal),
              length == 1024 && d == 64 ? When::always : When::full, operation);
}

// The steps of suite decode against caches of 8 bits.
void add_caches(Table& table) {
  const auto add_case = [&](Case problem, When when = When::full) {
    problem.k_type = problem.v_type = DType::i8;
    problem.k_scales = problem.v_scales = true;
    add(table, "cache", problem, when);
  };
  add_case(decode(1, 32, 32, 4096));
  add_case(decode(1, 32, 8, 8192), When::always);
  add_case(decode(8, 32, 8, 2048));
}

double pairs(const Case& p) {
  const double all = static_cast<double>(p.batch * p.heads) * static_cast<double>(p.q_length) *
                     static_cast<double>(p.k_length);
  return p.causal ? all / 2 : all;
}

}  // namespace

std::string_view name_of(Operation operation) {
  switch (operation) {
    case Operation::forward: return "forward";
    case Operation::backward: return "backward";
    case Operation::layer: return "layer";
    case Operation::layer_train: return "layer_train";
    case Operation::inspect_rows: return "inspect_rows";
    case Operation::inspect_top: return "inspect_top";
    case Operation::inspect_all: return "inspect_all";
  }
  return "";
}

std::string name(const BenchCase& measured) {
  const Case& p = measured.problem;
  std::string text = measured.suite + "/B" + std::to_string(p.batch);
  const auto word = [&](const char* letter, std::int64_t n) {
    text += "_" + (letter + std::to_string(n));
  };
  word("H", p.heads);
  if (p.kv_heads != p.heads) word("K", p.kv_heads);
  if (p.q_length != p.k_length) word("Q", p.q_length);
  word("T", p.k_length);
  word("d", p.d);
  if (p.causal) text += "_causal";
  if (measured.operation == Operation::layer_train) text += "_train";
  if (measured.operation == Operation::inspect_rows) text += "_rows";
  if (measured.operation == Operation::inspect_top) text += "_top8";
  if (measured.operation == Operation::inspect_all) text += "_all";
  if (p.type != DType::f32) text += "_" + std::string(name_of(p.type));
  return text;
}

double flops(const BenchCase& measured) {
  const Case& p = measured.problem;
  const double forward = 4 * pairs(p) * static_cast<double>(p.d);
  const auto width = static_cast<double>(p.heads * p.d);
  const double projections = 8 * static_cast<double>(p.batch * p.q_length) * width * width;
  switch (measured.operation) {
    case Operation::forward: return forward;
    case Operation::backward: return 2.5 * forward;
    case Operation::layer: return projections + forward;
    case Operation::layer_train: return 3 * projections + 3.5 * forward;
    case Operation::inspect_rows:
    case Operation::inspect_top: return 0.5 * forward;
    case Operation::inspect_all: return forward;
  }
  return 0;
}

double bytes_read(const BenchCase& measured) {
  const Case& p = measured.problem;
  const std::int64_t scales = (p.k_scales + p.v_scales) * size_of(DType::f32);
  const std::int64_t token =
      p.d * size_of(p.k_type.value_or(p.type)) + p.dv * size_of(p.v_type.value_or(p.type)) + scales;
  return static_cast<double>(p.batch * p.kv_heads) * static_cast<double>(p.k_length) *
         static_cast<double>(token);
}

bool is_decode(const BenchCase& measured) {
  return measured.operation == Operation::forward && measured.problem.q_length == 1;
}

std::vector<BenchCase> bench_table(DType type) {
  Table table;
  add_forward(table);
  add_backward(table);
  add_layers(table);
  add_sweeps(table);
  add_inspect(table);
  add_caches(table);
  for (BenchCase& measured : table) measured.problem.type = type;
  return table;
}

std::vector<std::string> bench_suites() {
  std::vector<std::string> names;
  for (const BenchCase& measured : bench_table())
    if (std::find(names.begin(), names.end(), measured.suite) == names.end())
      names.push_back(measured.suite);
  return names;
}

bool only_by_name(std::string_view suite) {
  return suite == "length" || suite == "growth" || suite == "inspect" || suite == "cache";
}

}  // namespace attend::cases
