// The format of `.npy` on any Source and Sink.
//
//   offset 0   6 bytes   "\x93NUMPY"
//          6   2 bytes   the version: 1 0, 2 0 or 3 0
//          8   2 bytes   the header's length; since 2.0 it has 4 bytes
//              header    {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }, spaces,
//              newline data      to the end of the file
#pragma once

#include "io/file.h"

#include <attend/tensor.h>

namespace attend {

Tensor read_npy(const Source& source);
void write_npy(Sink& sink, const ConstTensorView& tensor);  // of a type that NumPy has

}  // namespace attend
