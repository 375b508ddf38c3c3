// Which kernels are under test, and where the tensors of a call lie for them: in memory of the host
// as they are, or in copies on the first GPU, whose results come back after the call.
//
//   ATTEND_ONLY=cuda. properties_rows_test    the same questions, of kernels whose names begin so
#pragma once

#include <attend/attention.h>
#include <attend/cuda.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace attend::test {

// Whether ATTEND_ONLY names kernels of the GPU. Where there is none all tests are skipped, and the
// program says why.
bool on_gpu();
// Those of the host, or those whose names begin with ATTEND_ONLY.
bool is_under_test(std::string_view kernel);

// The tensors of one call. On the GPU each has bytes of NaN around it, and nothing may change but
// the elements of what is written.
//
//   CallMemory memory(gpu);
//   const TensorView out_there = memory.out(out);
//   const ConstTensorView q_there = memory.in(q);
//   attention(q_there, ..., memory.begin(context));
//   memory.end();
class CallMemory {
 public:
  explicit CallMemory(bool gpu = on_gpu());
  CallMemory(const CallMemory&) = delete;
  CallMemory& operator=(const CallMemory&) = delete;

  ConstTensorView in(const ConstTensorView& view);
  TensorView out(const TensorView& view);  // read and written
  // Packed sequences have max_q and max_k on the GPU: a device needs them.
  AttentionOptions in(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                      AttentionOptions options);
  AttentionOutputs out(AttentionOutputs outputs);  // without visited_blocks
  AttentionGradients out(AttentionGradients gradients);

  // To be called when all tensors have their places, and when the call has been made.
  Where begin(Context& context = default_context());
  void end();

 private:
  struct Piece {
    ConstTensorView view;             // the host's
    const std::byte* lowest;          // of its elements
    std::size_t place, bytes, first;  // in the copy; first: of the element at index 0
    bool written;
  };
  void* place(const ConstTensorView& view, bool written);

  bool gpu_;
  std::vector<Piece> pieces_;
  std::size_t used_ = 0;
  std::vector<std::byte> sent_;
};

}  // namespace attend::test
