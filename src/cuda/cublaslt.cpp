#include "cuda/cublaslt.h"

#include "core/text.h"

#include <dlfcn.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <new>
#include <optional>

namespace attend::cuda {
namespace {

// Numbers of cublasLt.h, cublas_api.h and library_types.h.
constexpr int kCompute32 = 68, kCompute64 = 70;
constexpr int kReal32 = 0, kReal64 = 1, kReal16 = 2, kRealBf16 = 14;
constexpr int kTransposeA = 3, kTransposeB = 4, kEpilogue = 7, kBiasPointer = 8;
constexpr std::uint32_t kEpilogueBias = 4;
constexpr int kMostWorkspace = 1, kReductionSchemes = 3, kAlignmentOfA = 5;  // to D: 8
constexpr int kSplits = 2;

// The rows for which algorithms are chosen, and those for which one must be possible. Few rows are
// made by the tiles that suit many.
constexpr std::int64_t kNominalRows = 2048;
constexpr std::int64_t kRowsTried[] = {1, 3, 16, 65, 129, 300, 2048};
constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;
constexpr std::size_t kMostChoices = 4096;

int blas_type(DType type) noexcept {
  switch (type) {
    case DType::f64: return kReal64;
    case DType::f32: return kReal32;
    case DType::bf16: return kRealBf16;
    default: return kReal16;
  }
}

BlasCall::Strides nominal_strides(const BlasProduct& p, std::int64_t m) {
  return {aligned_stride(p.a_across ? m : p.k, p.type),
          aligned_stride(p.b_across ? p.k : p.n, p.type), aligned_stride(p.n, p.type)};
}

// Whether cuBLASLt takes the algorithm for so many rows, and how much memory it needs.
bool is_possible(BlasHandle handle, const BlasProduct& p, std::int64_t m,
                 const BlasAlgorithm& algorithm, std::size_t& workspace) {
  const BlasCall call(p, m, nominal_strides(p, m), nullptr);
  BlasFound found{};
  if (call.status != 0 ||
      blas().check(handle, call.operation, call.b, call.a, call.c, call.c, &algorithm, &found) != 0)
    return false;
  workspace = std::max(workspace, found.workspace);
  return found.state == 0 && found.workspace <= kWorkspaceBytes;
}

BlasChoice chosen_by_cublaslt(BlasHandle handle, const BlasProduct& p) {
  constexpr int kWanted = 16;
  const Blas& lt = blas();
  const BlasCall call(p, kNominalRows, nominal_strides(p, kNominalRows), nullptr);
  BlasPreference preference = nullptr;
  if (call.status != 0 || lt.make_preference(&preference) != 0) return {};
  constexpr std::uint32_t kNone = 0, kBytes = kBlasAlignment;
  static_cast<void>(
      lt.set_preference(preference, kMostWorkspace, &kWorkspaceBytes, sizeof kWorkspaceBytes));
  static_cast<void>(lt.set_preference(preference, kReductionSchemes, &kNone, sizeof kNone));
  for (int matrix = 0; matrix < 4; ++matrix)
    static_cast<void>(
        lt.set_preference(preference, kAlignmentOfA + matrix, &kBytes, sizeof kBytes));
  BlasFound list[kWanted]{};
  int count = 0;
  if (lt.find(handle, call.operation, call.b, call.a, call.c, call.c, preference, kWanted, list,
              &count) != 0)
    count = 0;
  static_cast<void>(lt.destroy_preference(preference));
  for (int n = 0; n < count; ++n) {
    const BlasFound& found = list[n];
    std::uint32_t splits = 0;
    std::size_t written = 0;
    if (found.state != 0 ||
        lt.configuration(&found.algorithm, kSplits, &splits, sizeof splits, &written) != 0 ||
        splits > 1)
      continue;
    std::size_t workspace = found.workspace;
    if (std::all_of(std::begin(kRowsTried), std::end(kRowsTried), [&](std::int64_t m) {
          return is_possible(handle, p, m, found.algorithm, workspace);
        }))
      return {true, found.algorithm, workspace};
  }
  return {};
}

// The library's handles, and what was chosen so far, of each device.
struct BlasOfGpu {
  BlasHandle handle = nullptr;
  std::map<BlasProduct, BlasChoice> chosen;
};
struct BlasOfGpus {
  std::mutex mutex;
  std::map<int, BlasOfGpu> of;
};
BlasOfGpus& blas_of_gpus() {
  static auto* const all = new BlasOfGpus;  // for ever, as the devices
  return *all;
}

}  // namespace

Blas load_blas(std::span<const char* const> names, const Gpu* gpu) {
  Blas b;
  b.missing = "finds no cuBLASLt (libcublasLt.so.13 or .12)";
  for (const char* name : names) {
    void* const library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) continue;
    b.missing.clear();
#define ATTEND_LOAD_BLAS(name, symbol, ...)                                   \
  b.name = reinterpret_cast<Result (*)(__VA_ARGS__)>(dlsym(library, symbol)); \
  if (b.name == nullptr && b.missing.empty())                                 \
    b.missing = text("finds a cuBLASLt without ", symbol, ", too old for it");
    ATTEND_BLAS_FUNCTIONS(ATTEND_LOAD_BLAS)
#undef ATTEND_LOAD_BLAS
    if (!b.missing.empty()) continue;
    std::optional<InContext> in;
    if (gpu != nullptr) in.emplace(*gpu);
    const Result failed = b.create(&b.tried);
    if (failed == 0) {
      b.tried_on = gpu != nullptr ? gpu->index() : -1;
      break;
    }
    b.tried = nullptr;
    b.missing = text("finds a cuBLASLt that gives no handle (status ", failed, ")");
  }
  return b;
}

const Blas& blas(const Gpu* gpu) {
  static constexpr const char* kNames[] = {"libcublasLt.so.13", "libcublasLt.so.12",
                                           "/usr/local/cuda/lib64/libcublasLt.so.13",
                                           "/usr/local/cuda/lib64/libcublasLt.so.12"};
  static const Blas* const only = new Blas(load_blas(kNames, gpu));  // for ever, as the driver
  return *only;
}

BlasCall::BlasCall(const BlasProduct& p, std::int64_t m, const Strides& strides,
                   const void* bias) noexcept {
  const Blas& lt = blas();
  const auto attempt = [&](Result result) {
    if (status == 0) status = result;
    return status == 0;
  };
  const int type = blas_type(p.type);
  const bool wide = p.type == DType::f64;
  if (!attempt(
          lt.make_operation(&operation, wide ? kCompute64 : kCompute32, wide ? kReal64 : kReal32)))
    return;
  // The library's first matrix is b^T [n, k], its second a^T [k, m].
  const int first = p.b_across ? 1 : 0, second = p.a_across ? 1 : 0;
  attempt(lt.set_operation(operation, kTransposeA, &first, sizeof first));
  attempt(lt.set_operation(operation, kTransposeB, &second, sizeof second));
  if (p.bias) {
    attempt(lt.set_operation(operation, kEpilogue, &kEpilogueBias, sizeof kEpilogueBias));
    if (bias != nullptr)
      attempt(
          lt.set_operation(operation, kBiasPointer, static_cast<const void*>(&bias), sizeof bias));
  }
  const auto layout = [&](BlasLayout& to, std::int64_t rows, std::int64_t columns,
                          std::int64_t stride) {
    if (status == 0)
      attempt(lt.make_layout(&to, type, static_cast<std::uint64_t>(rows),
                             static_cast<std::uint64_t>(columns), stride));
  };
  layout(b, p.b_across ? p.k : p.n, p.b_across ? p.n : p.k, strides.b);
  layout(a, p.a_across ? m : p.k, p.a_across ? p.k : m, strides.a);
  layout(c, p.n, m, strides.c);
}

BlasCall::~BlasCall() {
  const Blas& lt = blas();
  for (const BlasLayout layout : {a, b, c})
    if (layout != nullptr) static_cast<void>(lt.destroy_layout(layout));
  if (operation != nullptr) static_cast<void>(lt.destroy_operation(operation));
}

Status choose_algorithm(Gpu& gpu, const BlasProduct& product, BlasHandle& handle,
                        BlasChoice& choice) noexcept try {
  BlasOfGpus& all = blas_of_gpus();
  const std::lock_guard lock(all.mutex);
  BlasOfGpu& here = all.of[gpu.index()];
  if (here.handle == nullptr && blas().tried_on == gpu.index()) here.handle = blas().tried;
  if (here.handle == nullptr && blas().create(&here.handle) != 0) {
    here.handle = nullptr;
    return {Status::Kind::failed, "cuBLASLt gives no handle on it"};
  }
  handle = here.handle;
  if (const auto known = here.chosen.find(product); known != here.chosen.end()) {
    choice = known->second;
    return {};
  }
  choice = chosen_by_cublaslt(here.handle, product);
  if (here.chosen.size() >= kMostChoices) here.chosen.clear();  // a depth of its own each batch
  here.chosen.emplace(product, choice);
  return {};
} catch (const std::bad_alloc&) {
  return {Status::Kind::out_of_memory, "the host has none"};
}

}  // namespace attend::cuda
