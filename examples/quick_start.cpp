// The lines of README.md, compiled: tests/documents_test.py holds the two texts together.
// [README]
#include <attend/attend.h>
#include <cstdio>

int main() {
  const float q[] = {1, 2, 3, 3, 2, 1}, k[] = {1, 0, 1, 0, 1, 0}, v[] = {10, 20, 30, 1, 2, 3};
  float out[6] = {};                      // memory of your own: nothing is copied
  const attend::Shape shape{1, 2, 3, 1};  // [batch, heads, tokens, head size]
  attend::attention({q, shape}, {k, shape}, {v, shape}, {out, shape}, {.causal = true});
  for (const float x : out) std::printf("%g\n", x);
}
// [/README]
