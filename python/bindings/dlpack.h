// DLPack: types of elements, and the C exchange API, functions that PyTorch, from 2.10 on, shows on
// the type of its tensors, which read and make them without any Python in between. Where they are
// missing tensors come and go by __dlpack__. All of this wants the GIL.
#pragma once

#include "arrays.h"

namespace attend::python {

std::optional<DType> from_dlpack(nb::dlpack::dtype type);
nb::dlpack::dtype to_dlpack(DType type);

// Whether an object is a torch.Tensor or a Parameter itself: a subclass may mean something else by
// its numbers.
bool is_exact_torch(nb::handle object);

// What such a tensor shows, as long as it lives and is not given other memory. False: PyTorch
// declines, as for tensors without memory, or has no such functions.
bool see_torch(nb::handle tensor, nb::dlpack::dltensor& seen);

// PyTorch's current stream on a GPU.
void* torch_stream(int device);

// torch.cuda, if PyTorch is loaded and finds a GPU; else invalid. It is not imported from here.
nb::object loaded_torch_cuda();

// A new torch.Tensor that shows `view` and owns the memory in which that lies; invalid if PyTorch
// has no such functions, and then the memory is not taken.
nb::object make_torch(Tensor& memory, const ConstTensorView& view);

}  // namespace attend::python
