#include "machine.h"

#include "units.h"

#include <attend/error.h>

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <set>
#include <sstream>

namespace attend::cli {
namespace {

// The words in /proc/cpuinfo, of x86-64 ("flags") and of aarch64 ("Features").
constexpr const char* kSimd[] = {
    "sse4_2",   "avx",      "f16c",        "fma",         "avx2",        "avx512f",  "avx512bw",
    "avx512vl", "avx_vnni", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16",
    "amx_fp16", "amx_int8", "asimd",       "asimdhp",     "asimddp",     "asimdfhm", "bf16",
    "i8mm",     "sve",      "sve2",        "sme"};

// aarch64 tells numbers ("CPU implementer", "CPU part") instead of a name. Those of Arm's own cores
// that servers have.
struct ArmCore {
  const char *number, *name;
};
constexpr ArmCore kArmCores[] = {{"0xd0c", "Neoverse N1"}, {"0xd40", "Neoverse V1"},
                                 {"0xd49", "Neoverse N2"}, {"0xd4f", "Neoverse V2"},
                                 {"0xd84", "Neoverse V3"}, {"0xd8e", "Neoverse N3"}};

std::string name_of_core(const std::string& implementer, const std::string& part) {
  for (const ArmCore& known : kArmCores)
    if (implementer == "0x41" && part == known.number) return std::string("Arm ") + known.name;
  return "implementer " + implementer + ", part " + part;
}

// The number that a file holds, if it is less than `most`: "max" is none.
std::int64_t least_of(std::int64_t most, const std::filesystem::path& file) {
  std::int64_t number = 0;
  return std::ifstream(file) >> number ? std::min(most, number) : most;
}

// This process's control group and those around it, in versions 1 and 2 of the system's tree.
std::int64_t group_limit(std::int64_t most) {
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const std::size_t name = line.find(':') + 1, path = line.find(':', name) + 1;
    const std::string kinds = line.substr(name, path - 1 - name);
    if (name == 0 || path == 0 || (!kinds.empty() && kinds != "memory")) continue;
    const std::filesystem::path root = kinds.empty() ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
    std::filesystem::path group = root / line.substr(std::min(path + 1, line.size()));
    for (; group.string().size() >= root.string().size(); group = group.parent_path())
      most = least_of(most, group / (kinds.empty() ? "memory.max" : "memory.limit_in_bytes"));
  }
  return most;
}

}  // namespace

std::int64_t memory_limit() {
  std::int64_t most = std::int64_t{::sysconf(_SC_PHYS_PAGES)} * ::sysconf(_SC_PAGESIZE);
  std::ifstream file("/proc/meminfo");
  std::int64_t kilobytes = 0;
  for (std::string word; file >> word;)
    if (word == "SwapTotal:" && file >> kilobytes) most += kilobytes << 10;
  for (const auto kind : {RLIMIT_AS, RLIMIT_DATA})
    if (rlimit limit{}; ::getrlimit(kind, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
      most = std::min(most, static_cast<std::int64_t>(std::min<rlim_t>(
                                limit.rlim_cur, std::numeric_limits<std::int64_t>::max())));
  return group_limit(most);
}

void check_memory(double needed, const std::string& what) {
  const std::int64_t limit = memory_limit();
  if (needed <= static_cast<double>(limit)) return;
  constexpr double kMost = 9e18;  // of 64 bits
  throw OutOfMemory("no memory: " + what + " takes at least " +
                    bytes(static_cast<std::int64_t>(std::min(needed, kMost))) +
                    (needed > kMost ? " and more" : "") + "; there are " + bytes(limit));
}

MachineInfo machine_info() {
  MachineInfo info;
#if defined(__x86_64__)
  info.architecture = "x86-64";
#elif defined(__aarch64__)
  info.architecture = "aarch64";
#else
  info.architecture = "unknown";
#endif
  info.processors = static_cast<int>(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN)));
  cpu_set_t set;
  CPU_ZERO(&set);
  info.allowed = ::sched_getaffinity(0, sizeof set, &set) == 0 ? std::max(1, CPU_COUNT(&set))
                                                               : info.processors;
  info.memory_bytes = std::int64_t{::sysconf(_SC_PHYS_PAGES)} * ::sysconf(_SC_PAGESIZE);

  std::ifstream file("/proc/cpuinfo");
  std::string implementer;
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(": ");
    if (colon == std::string::npos) continue;
    if (line.starts_with("model name") && info.model.empty()) info.model = line.substr(colon + 2);
    if (line.starts_with("CPU implementer")) implementer = line.substr(colon + 2);
    if (line.starts_with("CPU part") && info.model.empty())
      info.model = name_of_core(implementer, line.substr(colon + 2));
    if (!info.simd.empty() || !(line.starts_with("flags") || line.starts_with("Features")))
      continue;
    std::istringstream words(line.substr(colon + 2));
    std::set<std::string> seen;
    for (std::string word; words >> word;) seen.insert(word);
    for (const char* name : kSimd)
      if (seen.contains(name)) info.simd.emplace_back(name);
  }
  return info;
}

}  // namespace attend::cli
