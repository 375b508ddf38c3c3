// The rows of the kernel table and the machines they are for: whom does the plan choose for the
// cases of the table on a machine with AVX2, with AVX-512, with NEON, with none of them?
#include "api/check.h"
#include "cases/cases.h"
#include "cases/instance.h"
#include "core/product.h"
#include "plan/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <sstream>

#if defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace attend {
namespace {

struct Choice {
  Machine machine;
  std::string rows;           // what the names of its rows begin with
  std::string bf16{}, f16{};  // of these, where it is another
};

// Machines of this architecture: the table has no rows of the other. And those whose code this
// machine runs: a row's workspace is counted by functions that are compiled for it.
std::vector<Choice> choices() {
#if defined(__x86_64__)
  std::vector<Choice> list = {{{.architecture = "x86-64"}, "cpu.generic."}};
  if (__builtin_cpu_supports("avx2"))
    list.push_back({{.architecture = "x86-64", .avx2 = true}, "cpu.avx2."});
  if (__builtin_cpu_supports("avx512f"))
    list.push_back({{.architecture = "x86-64", .avx2 = true, .avx512 = true}, "cpu.avx512."});
  if (this_machine().avx512_bf16) {
    Choice bf16 = list.back();
    bf16.machine.avx512_bf16 = true;
    list.push_back(bf16);  // slower than f32
    bf16.machine.avx512_bf16_pays = true;
    bf16.bf16 = "cpu.avx512_bf16.";
    list.push_back(bf16);
  }
  if (this_machine().amx_bf16) {
    Machine amx = list.back().machine;
    amx.avx512_bf16_pays = false;
    amx.avx512_bf16 = amx.amx_bf16 = true;
    list.push_back({amx, "cpu.avx512."});  // without permission
    amx.amx_permitted = true;
    list.push_back({amx, "cpu.avx512.", "cpu.amx."});
    amx.amx_fp16 = true;
    if (this_machine().amx_fp16) list.push_back({amx, "cpu.avx512.", "cpu.amx.", "cpu.amx_fp16."});
  }
  return list;
#elif defined(__aarch64__)
  std::vector<Choice> list = {{{.architecture = "aarch64"}, "cpu.generic."},
                              {{.architecture = "aarch64", .neon = true}, "cpu.neon."}};
  if (this_machine().neon_bf16) {
    Choice bf16 = list.back();
    bf16.machine.neon_bf16 = true;
    bf16.bf16 = "cpu.neon_bf16.";
    list.push_back(bf16);
  }
  return list;
#else
  return {{{.architecture = "unknown"}, "cpu.generic."}};
#endif
}
// What no fast row of gradients takes yet.
constexpr Features kReferenceAlone{Feature::own_key_type, Feature::own_value_type,
                                   Feature::key_scales, Feature::value_scales};

// A test for each type.
class KernelRows : public testing::TestWithParam<DType> {};

TEST_P(KernelRows, no_case_is_left_to_the_reference) {
  int asked = 0;
  for (cases::Case problem : cases::table()) {
    problem.type = GetParam();
    const cases::Instance in = cases::make(problem);
    const auto expect_row = [&]<class Operation>(const Request<Operation>& wanted) {
      for (const Choice& choice : choices()) {
        const auto decision = decide<Operation>(wanted.problem, choice.machine, 1, "");
        const Features features = features_of(wanted.problem);
        constexpr bool kForward = std::is_same_v<Operation, Forward>;
        const bool alone = !kForward && features - kReferenceAlone != features;
        std::string rows = alone ? "reference." : choice.rows;
        bool same_type = true;  // of what is multiplied
        if constexpr (!kForward) same_type = wanted.problem.dout_type == GetParam();
        if (wanted.problem.own_k_type) same_type &= wanted.problem.k_type == DType::i8;
        if (wanted.problem.own_v_type) same_type &= wanted.problem.v_type == DType::i8;
        const bool f16 = GetParam() == DType::f16 && !wanted.problem.v_scales;
        const std::string other = !same_type                  ? ""
                                  : GetParam() == DType::bf16 ? choice.bf16
                                  : f16                       ? choice.f16
                                                              : "";
        if (!alone && !other.empty()) rows = other;
        ASSERT_TRUE(decision.kernel->name.starts_with(rows))
            << "a row " << rows << " is wanted for " << cases::name(problem) << "\n"
            << describe(decision);
        ++asked;
      }
    };
    expect_row(check(ForwardArguments{in.q, in.k, in.v, in.out, in.options, in.outputs}));
    expect_row(check(BackwardArguments{in.backward_inputs(), in.options, in.gradients}));
    if (HasFailure()) return;
  }
  EXPECT_GT(asked, 400) << "the table has a few hundred cases";
}

INSTANTIATE_TEST_SUITE_P(types, KernelRows, testing::ValuesIn(cases::kTypes),
                         [](const auto& test) { return std::string(name_of(test.param)); });

#if defined(__x86_64__)
// Products of 16 bits are for the tiles of AMX where the machine has them and the system permits
// them, of bf16 else for VDPBF16PS where it is faster than f32; it can be forced where it is not.
TEST(Products, of_16_bits_are_by_the_fastest_instructions) {
  std::map<std::string_view, std::string> why;
  const auto row = [&](DType type, const Machine& machine) {
    std::vector<std::pair<std::string_view, std::string>> declined;
    const std::string_view name =
        choose<Product>({.device = {}, .type = type, .bias = true}, machine, "", declined).name;
    why = {declined.begin(), declined.end()};
    return name;
  };
  Machine machine{.architecture = "x86-64", .avx2 = true, .avx512 = true, .avx512_bf16 = true};
  EXPECT_EQ(row(DType::bf16, machine), "cpu.avx512.product");
  EXPECT_EQ(why["cpu.amx.product"], "needs AMX-BF16, AVX512-BF16 and AVX512-VBMI");
  EXPECT_EQ(why["cpu.avx512_bf16.product"],
            "multiplies at half the speed of f32 on this processor, and has to be forced");
  const ProductProblem bf16{.device = {}, .type = DType::bf16, .bias = true};
  std::vector<std::pair<std::string_view, std::string>> none;
  EXPECT_EQ(choose<Product>(bf16, machine, "cpu.avx512_bf16.product", none).name,
            "cpu.avx512_bf16.product");
  machine.avx512_bf16_pays = true;
  EXPECT_EQ(row(DType::bf16, machine), "cpu.avx512_bf16.product");
  machine.avx512_bf16_pays = false;
  machine.amx_bf16 = true;
  EXPECT_EQ(row(DType::bf16, machine), "cpu.avx512.product");
  EXPECT_NE(why["cpu.amx.product"].find("permission"), std::string::npos);
  machine.amx_permitted = true;
  EXPECT_EQ(row(DType::bf16, machine), "cpu.amx.product");
  EXPECT_EQ(row(DType::f16, machine), "cpu.amx.product");
  EXPECT_EQ(why["cpu.amx_fp16.product"], "needs AMX-FP16");
  machine.amx_fp16 = true;
  EXPECT_EQ(row(DType::f16, machine), "cpu.amx_fp16.product");
  EXPECT_EQ(row(DType::f32, machine), "cpu.avx512.product");
}
#endif

// Asked another way than the library asks: by what the system says.
TEST(Machine, has_the_instruction_sets_that_the_system_lists) {
  const Machine machine = this_machine();
#if defined(__x86_64__)
  std::ifstream file("/proc/cpuinfo");
  std::string line, vendor;
  while (std::getline(file, line) && !line.starts_with("flags"))
    if (line.starts_with("vendor_id")) vendor = line;
  if (line.empty()) GTEST_SKIP() << "/proc/cpuinfo lists no flags";
  std::istringstream words(line);
  const std::set<std::string> flags{std::istream_iterator<std::string>(words), {}};
  const auto has = [&](std::initializer_list<const char*> names) {
    return std::all_of(names.begin(), names.end(),
                       [&](const char* name) { return flags.contains(name); });
  };
  EXPECT_EQ(machine.avx2, has({"avx2", "fma", "f16c"}));
  EXPECT_EQ(machine.avx512,
            has({"avx2", "fma", "f16c", "avx512f", "avx512dq", "avx512bw", "avx512vl"}));
  EXPECT_EQ(machine.avx512_bf16, machine.avx512 && has({"avx512_bf16"}));
  EXPECT_EQ(machine.amx_bf16, machine.avx512_bf16 && has({"amx_tile", "amx_bf16"}));
  const bool amd = vendor.ends_with("AuthenticAMD"),
             none = machine.amx_bf16 || !machine.avx512_bf16;
  EXPECT_TRUE(!amd || machine.avx512_bf16_pays == machine.avx512_bf16);
  EXPECT_TRUE(!none || !machine.avx512_bf16_pays);
  EXPECT_FALSE(machine.neon);
#elif defined(__aarch64__)
  EXPECT_EQ(machine.neon, (getauxval(AT_HWCAP) & HWCAP_ASIMD) != 0);
  EXPECT_EQ(machine.neon_bf16, (getauxval(AT_HWCAP2) & HWCAP2_BF16) != 0);
  EXPECT_FALSE(machine.avx2 || machine.avx512);
#endif
}

}  // namespace
}  // namespace attend
