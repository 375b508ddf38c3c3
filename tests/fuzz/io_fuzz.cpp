// The readers of files against bytes that nobody meant. Whatever the bytes are, a reader either
// gives tensors, which written and read again are the same, or throws a FileError of one line; and
// a sanitizer watches the memory. Built in two ways:
//
//   clang++ -fsanitize=fuzzer,address,undefined   libFuzzer chooses the bytes:
//       io_fuzz -max_total_time=60 CORPUS         where the driver's --seeds has put the first
//   with -DATTEND_FUZZ_DRIVER                     random changes of the tests' malformed files:
//       io_fuzz [COUNT [SEED]]                    a failure is left in io_fuzz_failure.bin;
//       io_fuzz FILE                              tries that one again
//       io_fuzz --seeds FOLDER                    writes the unchanged files, for libFuzzer
#include "io/npy.h"
#include "io/safetensors.h"
#include "support/io_files.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

namespace attend::test {
namespace {

void require(bool holds, const char* rule) {
  if (holds) return;
  std::fprintf(stderr, "io_fuzz: broken: %s\n", rule);
  std::abort();
}

// Runs a reader: true if it has read something.
template <class Read>
bool reads(Read read) {
  try {
    read();
    return true;
  } catch (const FileError& error) {
    const std::string_view message = error.what();
    require(message.starts_with("load: file: "), "a message names the function and the path");
    require(message.find('\n') == message.npos, "a message is one line");
    require(message.size() < 1000, "a message is short");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "io_fuzz: %s\n", error.what());
    require(false, "only a FileError is thrown");
  }
  return false;
}

void try_npy(std::string_view bytes) {
  Tensor tensor;
  if (!reads([&] { tensor = read_npy(MemorySource("load: file", bytes)); })) return;
  MemorySink sink;
  write_npy(sink, tensor);
  const Tensor again = read_npy(MemorySource("load: file", sink.bytes));
  require(difference(tensor, again).empty(), "npy: written and read again, a tensor is the same");
}

void try_safetensors(std::string_view bytes) {
  TensorFile file;
  if (!reads([&] { file = read_safetensors(MemorySource("load: file", bytes)); })) return;
  std::vector<NamedView> views;
  for (const NamedTensor& t : file.tensors) views.push_back({t.name, t.tensor});
  MemorySink sink;
  write_safetensors(sink, safetensors_head("save", views, file.metadata), views);
  const TensorFile again = read_safetensors(MemorySource("load: file", sink.bytes));
  require(again.metadata == file.metadata, "safetensors: the metadata is the same");
  require(again.tensors.size() == views.size(), "safetensors: all tensors are written");
  for (std::size_t n = 0; n < views.size(); ++n) {
    require(again.tensors[n].name == views[n].name, "safetensors: names and order are the same");
    require(difference(again.tensors[n].tensor, views[n].tensor).empty(),
            "safetensors: written and read again, a tensor is the same");
  }
}

}  // namespace
}  // namespace attend::test

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  attend::test::try_npy(bytes);
  attend::test::try_safetensors(bytes);
  return 0;
}

#ifdef ATTEND_FUZZ_DRIVER
#include "support/io_malformed.h"

#include <csignal>

namespace attend::test {
namespace {

constexpr const char* kFailureFile = "io_fuzz_failure.bin";

std::vector<std::string> seeds() {
  std::vector<std::string> all;
  for (const auto& table : {malformed_npy(), malformed_safetensors()})
    for (const MalformedFile& file : table)
      if (file.bytes.size() < 4096) all.push_back(file.bytes);
  for (const DType type : kAllTypes)
    for (const Shape& shape : {Shape{}, Shape{2, 3}, Shape{0, 5}, Shape{2, 1, 3, 1, 2, 1, 1, 2}}) {
      const Tensor tensor = random_tensor(shape, type);
      MemorySink one, many;
      if (type != DType::bf16) write_npy(one, tensor);
      const std::vector<NamedView> views = {{"a", tensor}, {"b", tensor}};
      write_safetensors(many, safetensors_head("save", views, {{"k", "v"}}), views);
      all.push_back(one.bytes);
      all.push_back(many.bytes);
    }
  return all;
}

// Pieces that mean something in either format.
constexpr std::string_view kWords[] = {
    "\"dtype\"",
    "\"shape\"",
    "\"data_offsets\"",
    "\"__metadata__\"",
    "\"F32\"",
    "\"BOOL\"",
    "\"U8\"",
    "[0,24]",
    "[]",
    "{}",
    ":",
    ",",
    "'descr'",
    "'shape'",
    "'fortran_order'",
    "'<f4'",
    "'|b1'",
    "True",
    "False",
    "()",
    "(2, 3)",
    "0",
    "-1",
    "4294967296",
    "9223372036854775807",
    "18446744073709551615",
    "\\u0000",
    "\n",
    " ",
};

class Mutator {
 public:
  explicit Mutator(unsigned seed) : random_(seed), seeds_(seeds()) {}

  std::string next() {
    std::string bytes = seeds_[below(seeds_.size())];
    for (std::size_t n = 1 + below(4); n > 0; --n) change(bytes);
    // Half of the time the length of a safetensors header is made right, so that more is reached.
    if (bytes.size() > 16 && bytes[8] == '{' && below(2) == 0) {
      const std::size_t end = bytes.rfind('}');
      if (end != bytes.npos && end > 8) bytes.replace(0, 8, little_endian(end - 7, 8));
    }
    return bytes;
  }

 private:
  std::size_t below(std::size_t limit) { return limit == 0 ? 0 : random_() % limit; }

  void change(std::string& bytes) {
    const std::size_t at = below(bytes.size() + 1), count = 1 + below(8);
    switch (below(7)) {
      case 0:
        if (at < bytes.size()) bytes[at] = static_cast<char>(random_());
        break;
      case 1:
        if (at < bytes.size()) bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
        break;
      case 2: bytes.erase(at, count); break;
      case 3: bytes.insert(at, bytes.substr(below(bytes.size() + 1), count * 4)); break;
      case 4: bytes.insert(at, kWords[below(std::size(kWords))]); break;
      case 5:
        bytes.replace(at, std::min(count, bytes.size() - at), kWords[below(std::size(kWords))]);
        break;
      default: {
        const std::string& other = seeds_[below(seeds_.size())];
        bytes.replace(at, bytes.npos, other.substr(std::min(at, other.size())));
      }
    }
  }

  std::mt19937 random_;
  std::vector<std::string> seeds_;
};

void run(std::string_view bytes) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
}

void fuzz(long count, unsigned seed) {
  Mutator mutator(seed);
  // What the reader dies of stays here: a copy in exactly as much memory as it has bytes.
  static std::string current;
  const auto keep = [](int) {
    if (std::FILE* file = std::fopen(kFailureFile, "wb")) {
      std::fwrite(current.data(), 1, current.size(), file);
      std::fclose(file);
    }
    std::_Exit(1);
  };
  std::signal(SIGABRT, keep);
  for (long n = 0; n < count; ++n) {
    current = mutator.next();
    const std::vector<char> exact(current.begin(), current.end());
    run({exact.data(), exact.size()});
  }
  std::printf("io_fuzz: %ld files, seed %u: nothing broken\n", count, seed);
}

}  // namespace
}  // namespace attend::test

int main(int argc, char** argv) {
  using namespace attend::test;
  const std::string first = argc > 1 ? argv[1] : "1000000";
  if (first == "--seeds" && argc == 3) {
    int n = 0;
    for (const std::string& bytes : seeds())
      write_bytes(fs::path(argv[2]) / std::to_string(n++), bytes);
  } else if (first.find_first_not_of("0123456789") == first.npos) {
    fuzz(std::atol(first.c_str()), argc > 2 ? static_cast<unsigned>(std::atoi(argv[2])) : 1);
  } else {
    run(bytes_of(first));
  }
  return 0;
}
#endif
