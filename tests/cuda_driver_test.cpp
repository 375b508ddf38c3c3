// A machine without a GPU, with an old driver, or one that fails: each error has its class and its
// words, nothing runs on the CPU instead, and the next call works. The drivers are a fake one's
// (tests/fake_driver), in processes of their own, and so are the modules
// (support/fake_modules.cpp).
#include "cuda/cublaslt.h"
#include "cuda/modules.h"
#include "support/device_tensor.h"
#include "support/layer_numbers.h"
#include "support/thrown_by.h"

#include <attend/attention.h>

#include <gtest/gtest.h>

#include <array>
#include <cstdio>

#include <unistd.h>

namespace attend::test {
namespace {

// What a process that is started with --say prints: why there is no GPU, what a queue is refused
// with, and two calls on tensors that are said to be there. Their memory is the host's: whoever
// computed on the CPU instead would be seen.
int say() {
  constexpr Device kGpu{Device::Kind::cuda, 0};
  const std::string reason = cuda::why_unavailable();
  std::printf("unavailable: %s\n", reason.c_str());
  std::shared_ptr<Queue> queue;
  std::printf("queue: %s\n", thrown_by([&] { queue = cuda::make_queue(); }).c_str());
  const Tensor q = numbers({1, 2, 5, 64}, DType::bf16, 1);
  Tensor out({1, 2, 5, 64}, DType::bf16);
  const ConstTensorView there(q.view().data(), DType::bf16, q.shape(), kGpu);
  const TensorView to(out.view().data(), DType::bf16, out.shape(), kGpu);
  for (const char* which : {"first", "second"}) {
    const std::string found = thrown_by([&] {
      if (queue) attention(there, there, there, to, {}, {}, *queue);
      else attention(there, there, there, to);
    });
    std::printf("%s call: %s\n", which, found.c_str());
  }
  const bool untouched = same_bits(out, Tensor(out.shape(), out.dtype()));
  std::printf("out: %s\n", untouched ? "as it was" : "computed on the CPU");
  return 0;
}

// What such a process says with other variables in its environment.
std::string said_with(const std::string& variables) {
  std::array<char, 4096> own{};
  const auto length = readlink("/proc/self/exe", own.data(), own.size() - 1);
  if (length <= 0) return "no name of the program";
  const std::string command = "env " + variables + " '" + own.data() + "' --say 2>&1";
  FILE* const pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return "no process";
  std::string said;
  std::array<char, 256> part{};
  while (std::fgets(part.data(), part.size(), pipe) != nullptr) said += part.data();
  pclose(pipe);
  return said;
}

const std::string kFakes = ATTEND_FAKE_DRIVERS;  // a folder for each
std::string said_by(const std::string& fake, const std::string& fails_at) {
  return said_with("LD_LIBRARY_PATH='" + kFakes + "/" + fake + "' FAKE_DRIVER=" + fails_at);
}

// What a process without a GPU says: every call is refused, with the reason of each row.
void expect_refused(const std::string& said, const std::string& reason) {
  const auto has = [&](const std::string& words) {
    EXPECT_NE(said.find(words), said.npos) << words << "\n" << said;
  };
  has("unavailable: " + reason + "\n");
  has("queue: Unsupported: make_queue: this process " + reason + "\n");
  for (const char* which : {"first", "second"})
    has(which + std::string(" call: Unsupported: plan: no kernel takes forward bf16, "));
  has(": cuda.sm90.forward " + reason + "; cuda.portable.forward " + reason + "; ");
  has("reads host memory, the tensors are on cuda:0");
  has("out: as it was\n");
}

TEST(CudaDriver, one_that_is_too_old_is_told) {
  expect_refused(said_by("old", "nothing"),
                 "finds an NVIDIA driver without cuTensorMapEncodeTiled, too old for it");
  const int major = cuda::toolkit_version() / 1000;
  expect_refused(said_by("new", "old"), "finds an NVIDIA driver for CUDA 11.8; its kernels need " +
                                            std::to_string(major) + ".0");
}

TEST(CudaDriver, no_device_is_told) {
  expect_refused(said_by("new", "no_gpu"), "finds no GPU: no CUDA-capable device is detected");
  expect_refused(said_by("new", "none"), "finds no GPU");
  expect_refused(said_by("new", "no_context"), "cannot use cuda:0");
}

// The real driver, where there is one, with its devices hidden.
TEST(CudaDriver, hidden_devices_are_none) {
  if (const std::string reason = cuda::why_unavailable(); !reason.empty())
    GTEST_SKIP() << "this machine has no GPU for it: it " << reason;
  expect_refused(said_with("CUDA_VISIBLE_DEVICES="),
                 "finds no GPU: no CUDA-capable device is detected");
}

// What fails once is tried again by the next call.
TEST(CudaDriver, a_failure_is_thrown_and_the_next_call_works) {
  const std::pair<const char*, const char*> failures[] = {
      {"nothing", "nothing"},
      {"no_module", "OutOfMemory: attention: cuda:0 has no memory for it: out of memory"},
      {"no_shared_memory", "DeviceError: attention: cuda:0 failed: invalid argument"},
      {"no_launch", "OutOfMemory: attention: cuda:0 has no memory for it: out of memory"}};
  for (const auto& [what, thrown] : failures) {
    const std::string said = said_by("new", what);
    EXPECT_NE(said.find("queue: nothing\nfirst call: " + std::string(thrown) +
                        "\nsecond call: nothing\nout: as it was\n"),
              said.npos)
        << what << "\n"
        << said;
  }
}

// Needs no kernels: what decides is whether a library gives a handle.
TEST(CudaBlas, a_library_that_gives_no_handle_is_passed_over) {
  const std::string failing = kFakes + "/libfake_blas_failing.so",
                    working = kFakes + "/libfake_blas_working.so";
  const auto missing = [](std::initializer_list<const char*> names) {
    return cuda::load_blas({names.begin(), names.size()}, nullptr).missing;
  };
  EXPECT_EQ(missing({working.c_str()}), "");
  EXPECT_EQ(missing({"none", failing.c_str(), working.c_str()}), "");
  EXPECT_EQ(missing({failing.c_str(), "none"}), "finds a cuBLASLt that gives no handle (status 1)");
  EXPECT_EQ(missing({"none"}), "finds no cuBLASLt (libcublasLt.so.13 or .12)");
}

}  // namespace
}  // namespace attend::test

int main(int argc, char** argv) {
  if (argc == 2 && std::string(argv[1]) == "--say") return attend::test::say();
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
