// Every allocation of the process, counted, and one of them made to fail.
#pragma once

#include <atomic>
#include <cstddef>

namespace attend::test {

extern std::atomic<std::size_t> bytes_allocated;     // ever; what is freed stays counted
extern std::atomic<std::size_t> allocations;         // their number
extern std::atomic<std::size_t> living_allocations;  // that have not been freed
extern std::atomic<std::size_t> failing_allocation;  // this one finds no memory; 0: none

}  // namespace attend::test
