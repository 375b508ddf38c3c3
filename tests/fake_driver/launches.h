// What a test hears from the drivers that are none (driver.cpp, cublaslt.cpp).
#pragma once

#include <cstddef>

namespace attend::test {

class FakeListener {
 public:
  virtual ~FakeListener() = default;
  // A kernel of that name; its arguments are a struct.
  virtual void launched(const char* name, unsigned blocks, const void* arguments) = 0;
  virtual void allocated(std::size_t bytes) = 0;  // memory of a stream
};

// A product of cuBLASLt's: whether its first matrix, and its second, are transposed.
struct FakeProduct {
  int first = 0, second = 0;
};

}  // namespace attend::test

extern "C" {
void listen_to_fake_driver(attend::test::FakeListener* to);  // null: nobody listens
const attend::test::FakeProduct* last_fake_product();
}
