// One query a head against many keys on Hopper (sm_90a), bf16 and f16, with the bits of
// forward_sm90.cu: a row has them in a prompt and alone.
//
// There a row's sums go through the tiles of keys in ascending order, one after the other. The
// order of these sums cannot be cut, but what they are made of can be had in any order, and sums of
// different features do not meet:
//
//   attend_one_query_scores   1 scores and 2 mask, tile by tile, all at the same time: each key is
//                             read once for all heads of a group
//   attend_one_query_values   3 softmax: the reference score at a tile follows from the largest
//                             scores of the tiles before it, and then its weights from its scores;
//                             4 values: a block of threads sums 64 features over all keys
//
// Scores go through memory: 4 bytes for each, where a key and its value are 4 d bytes, or 2 d and
// their scales (8 bits: as there, scores and weights take the scales).
//
// Products are turned where rows would be empty, O^T = V^T P^T: a sum has the same bits
// (docs/decisions/041).
#include "one_query_values.cuh"

namespace attend::cuda {

using OneQueryType = ATTEND_TYPE;

}  // namespace attend::cuda

// Compiled once for each type and d, into a module of its own: -DATTEND_TYPE=bf16 -DATTEND_D=128,
// and with -DATTEND_BYTES=true for keys and values of 8 bits.
extern "C" __global__ void __launch_bounds__(attend::cuda::kScoreThreads,
                                             attend::cuda::score_blocks_each(ATTEND_D))
    attend_one_query_scores(const __grid_constant__ attend::cuda::OneQueryParameters p) {
  using namespace attend::cuda;
  if constexpr (ATTEND_BYTES) byte_scores<OneQueryType, ATTEND_D>(p);
  else scores<OneQueryType, ATTEND_D>(p);
}
extern "C" __global__ void __launch_bounds__(attend::cuda::value_threads(ATTEND_BYTES), 2)
    attend_one_query_values(const __grid_constant__ attend::cuda::OneQueryParameters p) {
  using namespace attend::cuda;
  values<OneQueryType, ATTEND_D, kSlice, ATTEND_BYTES>(p);
}
extern "C" __global__ void __launch_bounds__(attend::cuda::value_threads(ATTEND_BYTES), 2)
    attend_one_query_values_narrow(const __grid_constant__ attend::cuda::OneQueryParameters p) {
  using namespace attend::cuda;
  values<OneQueryType, ATTEND_D, kNarrowSlice, ATTEND_BYTES>(p);
}
