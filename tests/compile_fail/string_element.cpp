// A tensor holds numbers.
// expect: basic_string.*Element|Element.*basic_string
#include <attend/attend.h>

#include <string>

#ifdef WRONG
using Value = std::string;
#else
using Value = float;
#endif

attend::Tensor tensor(const Value& value) {
  return attend::Tensor({value, value}, {2});  // here
}
