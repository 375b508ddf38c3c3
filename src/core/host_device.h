// Functions that kernels of devices use, too: a compiler of CUDA makes them for both sides.
#pragma once

#ifdef __CUDACC__
#define ATTEND_HOST_DEVICE __host__ __device__
#else
#define ATTEND_HOST_DEVICE
#endif
