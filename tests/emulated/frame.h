// The registers of a thread that was interrupted by a signal, as Linux lays them before the
// handler: general registers in the context, vectors and masks where XSAVE puts them. What is
// written here the thread finds in its registers when it goes on.
#pragma once

#include <cpuid.h>
#include <ucontext.h>

#include <cstdint>
#include <cstring>

namespace attend::test {

class Frame {
 public:
  explicit Frame(ucontext_t& context)
      : general_(context.uc_mcontext.gregs),
        saved_(reinterpret_cast<std::uint8_t*>(context.uc_mcontext.fpregs)) {
    // A part that XSAVE found in its first state was not written: it is 0.
    auto* const present = reinterpret_cast<std::uint64_t*>(saved_ + 512);
    for (const Part& part : parts())
      if ((*present >> part.number & 1) == 0) {
        std::memset(saved_ + part.offset, 0, part.bytes);
        *present |= std::uint64_t{1} << part.number;
      }
  }

  std::uint64_t general(int n) const {
    static constexpr int kOrder[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                                       REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                                       REG_R12, REG_R13, REG_R14, REG_R15};
    return static_cast<std::uint64_t>(general_[kOrder[n]]);
  }
  const std::uint8_t* next_instruction() const {
    return reinterpret_cast<const std::uint8_t*>(general_[REG_RIP]);
  }
  void skip(int bytes) { general_[REG_RIP] += bytes; }

  std::uint64_t mask(int n) const {
    std::uint64_t bits = 0;
    std::memcpy(&bits, saved_ + parts()[kMasks].offset + 8 * n, 8);
    return bits;
  }

  // All 64 bytes of vector register n of 32.
  void read(int n, std::uint8_t (&to)[64]) const {
    each_part_of(n, [&](std::uint8_t* at, int begin, int bytes) {
      std::memcpy(to + begin, at, static_cast<std::size_t>(bytes));
    });
  }
  void write(int n, const std::uint8_t (&from)[64]) {
    each_part_of(n, [&](std::uint8_t* at, int begin, int bytes) {
      std::memcpy(at, from + begin, static_cast<std::size_t>(bytes));
    });
  }

 private:
  struct Part {
    int number;  // of XSAVE
    std::size_t offset, bytes;
  };
  enum {
    kLow,
    kMiddle,
    kMasks,
    kHigh,
    kUpper
  };  // bytes 0 to 15, 16 to 31; 32 to 63; registers 16 to 31

  static const Part* begin_of_parts() {
    static const auto* const made = [] {
      static Part all[5] = {{1, 160, 256}, {2, 0, 0}, {5, 0, 0}, {6, 0, 0}, {7, 0, 0}};
      for (Part& part : all)
        if (part.number > 1) {
          unsigned bytes = 0, offset = 0, c = 0, d = 0;
          __cpuid_count(0xD, part.number, bytes, offset, c, d);
          part.offset = offset, part.bytes = bytes;
        }
      return all;
    }();
    return made;
  }
  struct Parts {
    const Part* begin() const { return begin_of_parts(); }
    const Part* end() const { return begin_of_parts() + 5; }
    const Part& operator[](int n) const { return begin_of_parts()[n]; }
  };
  static Parts parts() { return {}; }

  template <class Do>
  void each_part_of(int n, Do&& act) const {
    if (n >= 16) return act(saved_ + parts()[kUpper].offset + 64 * (n - 16), 0, 64);
    act(saved_ + parts()[kLow].offset + 16 * n, 0, 16);
    act(saved_ + parts()[kMiddle].offset + 16 * n, 16, 16);
    act(saved_ + parts()[kHigh].offset + 32 * n, 32, 32);
  }

  greg_t* general_;
  std::uint8_t* saved_;
};

}  // namespace attend::test
