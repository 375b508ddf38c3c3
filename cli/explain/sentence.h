// "The cat sat on the mat" and a layer whose eight heads were built by hand, to show what a head
// can do. Nothing here was trained: the weights are written down so that each head finds what its
// name says.
//
//   x [6, 512] = one-hot word (64) | one-hot position (64) | one-hot class of the word (8) | zeros
//   8 heads of 64. A head that relates classes has the score
//     24 [class match] - 2 distance in its direction, -36 at or before the query, and 6 on token 0,
//   so that a row without a match rests on token 0. V reads the word, W^O is the identity:
//   output[i, 64 h + w] is the weight that head h of token i gave to word w.
#pragma once

#include <attend/multi_head_attention.h>

#include <string>
#include <vector>

namespace attend::cli {

struct SentenceHead {
  std::string name, name_zh;
  // keys[i]: what query i is meant to find; -1: nothing in particular (uniform, random).
  std::vector<std::int64_t> keys;
};

struct Sentence {
  std::vector<std::string> words;
  std::vector<std::int64_t> ids;  // "The" and "the" are one word
  Tensor x;                       // [6, 512]
  MultiHeadAttention layer;
  std::vector<SentenceHead> heads;
};

Sentence make_sentence();

}  // namespace attend::cli
