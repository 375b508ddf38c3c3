#include "sweep.h"

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>

namespace attend::test {
namespace {

struct Command {
  double seconds = 600;
  std::int64_t cases = -1;  // -1: by seconds
  std::optional<std::uint64_t> seed;
  std::int64_t failures = 5;  // how many end it
  std::vector<std::string> kernels, skip;
  std::string line;
};

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(at, begin), text.size());
    if (end > begin) parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

Command parse_command(int argc, char** argv) {
  Command command;
  if (const char* seconds = std::getenv("ATTEND_SOAK_SECONDS"))
    command.seconds = std::atof(seconds);
  for (int n = 1; n < argc; ++n) {
    std::string name = argv[n], value;
    if (const std::size_t equals = name.find('='); equals != name.npos) {
      value = name.substr(equals + 1);
      name.resize(equals);
    } else if (n + 1 < argc) {
      value = argv[++n];
    }
    if (value.empty()) throw std::invalid_argument("no value for " + name);
    if (name == "--seconds") command.seconds = std::stod(value);
    else if (name == "--cases") command.cases = std::stoll(value);
    else if (name == "--seed") command.seed = std::stoull(value);
    else if (name == "--failures") command.failures = std::stoll(value);
    else if (name == "--kernels") command.kernels = split(value, ',');
    else if (name == "--skip") command.skip = split(value, ',');
    else if (name == "--case") command.line = value;
    else throw std::invalid_argument("no option " + name);
  }
  if (!command.seed)
    command.seed = command.cases >= 0 ? 1 : static_cast<std::uint64_t>(std::time(nullptr));
  return command;
}

// What can be drawn, and so what a smaller case may be.
bool is_valid(const cases::Case& c) {
  if (c.kv_heads == 0 ? c.heads != 0 : c.heads % c.kv_heads != 0) return false;
  if (c.addressing == cases::Addressing::packed_self && c.k_length != c.q_length) return false;
  if (is_paged(c) && c.key_lengths == cases::Lengths::none) return false;
  if ((c.k_type == DType::i8 && !c.k_scales) || (c.v_type == DType::i8 && !c.v_scales))
    return false;
  return c.gradients != cases::Gradients::extras || c.bias != cases::Bias::none || c.alibi ||
         c.sinks;
}

// "forward by cpu.neon.forward" of a message.
std::string kind_of(const std::string& message) { return message.substr(0, message.find(':')); }

std::string on_one_line(std::string text) {
  for (char& c : text)
    if (c == '\n') c = ' ';
  return text.size() <= 700 ? text : text.substr(0, 700) + " ...";
}

// What a crash shows: the handler may do little more than write.
char running[1024] = "";

void say_what_ran(int signal) {
  const char* words[] = {"CRASHED, repeat: ", running, "\n"};
  for (const char* word : words)
    if (write(STDERR_FILENO, word, std::strlen(word)) < 0) break;
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

class Runner {
 public:
  Runner(const Sweep& sweep, const Command& command)
      : sweep_(sweep), skip_(command.skip), tally_(command.kernels) {}

  // False if it failed, which has been said.
  bool run(const SweepCase& drawn) {
    std::string message = judged(drawn, tally_);
    if (message.empty()) return true;
    const SweepCase smaller = shrunk(drawn, message);
    std::printf("FAILED %s; repeat: %s\n", on_one_line(message).c_str(),
                command_of(smaller).c_str());
    std::fflush(stdout);
    return false;
  }
  const Tally& tally() const { return tally_; }

 private:
  std::string command_of(const SweepCase& c) const {
    return sweep_.name + " --case='" + line_of(c) + "'";
  }

  // The first thing that is wrong and not to be skipped.
  std::string judged(const SweepCase& c, Tally& tally) const {
    std::snprintf(running, sizeof running, "%s", command_of(c).c_str());
    try {
      for (const std::string& message : sweep_.judge(c, tally)) {
        bool skipped = false;
        for (const std::string& word : skip_) skipped |= message.find(word) != message.npos;
        if (!skipped) return message;
      }
      return "";
    } catch (const std::exception& error) {
      return std::string("exception: ") + error.what();
    }
  }

  // One word of the case after the other is left out or made smaller, as long as the same thing
  // goes wrong. `message` becomes that of the last.
  SweepCase shrunk(SweepCase c, std::string& message) const {
    const std::string kind = kind_of(message);
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    for (bool smaller = true; smaller;) {
      smaller = false;
      for (const SweepCase& candidate : smaller_cases(c)) {
        if (std::chrono::steady_clock::now() > end) return c;
        Tally ignored = tally_;
        const std::string found = judged(candidate, ignored);
        if (found.empty() || kind_of(found) != kind) continue;
        c = candidate;
        message = found;
        smaller = true;
        break;
      }
    }
    return c;
  }

  static std::vector<SweepCase> smaller_cases(const SweepCase& c) {
    std::vector<SweepCase> list;
    const auto add = [&](const std::vector<std::string>& words) {
      std::string line;
      for (const std::string& word : words) line += word + " ";
      const SweepCase candidate{cases::parse(line), c.variant};
      if (is_valid(candidate.problem) && !(candidate.problem == c.problem))
        list.push_back(candidate);
    };
    const std::vector<std::string> words = split(cases::name(c.problem), ' ');
    static const std::set<std::string> kSizes = {"batch", "heads", "kv_heads", "q", "k", "d", "dv"};
    for (std::size_t n = 0; n < words.size(); ++n) {
      const std::string key = words[n].substr(0, words[n].find('='));
      std::vector<std::string> changed = words;
      if (kSizes.count(key) == 0) {
        if (key == "type" || key == "seed") continue;
        changed.erase(changed.begin() + static_cast<std::ptrdiff_t>(n));
        add(changed);
        continue;
      }
      const std::int64_t size = std::stoll(words[n].substr(key.size() + 1));
      for (const std::int64_t less : {std::int64_t{1}, size / 2, size - 1})
        if (less < size && less > 0) {
          changed[n] = key + "=" + std::to_string(less);
          add(changed);
        }
    }
    return list;
  }

  Sweep sweep_;
  std::vector<std::string> skip_;
  Tally tally_;
};

}  // namespace

std::string line_of(const SweepCase& c) {
  return cases::name(c.problem) + " variant=" + std::to_string(c.variant);
}

SweepCase parse_sweep_case(const std::string& line) {
  const std::string word = " variant=";
  const std::size_t at = line.find(word);
  SweepCase c{cases::parse(line.substr(0, at)), 0};
  if (at != line.npos) c.variant = std::stoull(line.substr(at + word.size()));
  return c;
}

bool Tally::wants(const std::string& kernel) const {
  if (wanted_.empty()) return true;
  for (const std::string& word : wanted_)
    if (kernel.find(word) != kernel.npos) return true;
  return false;
}

std::vector<KernelInfo> Tally::kernels(std::string_view operation) const {
  std::vector<KernelInfo> list;
  for (const KernelInfo& info : Context::kernels())
    if (info.operation == operation && wants(info.name)) list.push_back(info);
  return list;
}

bool Tally::report() const {
  for (const auto& [what, count] : runs_)
    std::printf("  %-28s %lld\n", what.c_str(), static_cast<long long>(count));
  for (const auto& [what, count] : declined_)
    if (runs_.count(what) == 0) std::printf("  %-28s declined all\n", what.c_str());
  for (const std::string& word : wanted_) {
    bool found = false;
    for (const auto& run : runs_) found = found || run.first.find(word) != word.npos;
    if (!found) std::printf("nothing that fits '%s' ran\n", word.c_str());
    if (!found) return false;
  }
  return !runs_.empty();
}

Context& context_of(int threads) {
  static std::map<int, std::unique_ptr<Context>> contexts;
  std::unique_ptr<Context>& context = contexts[threads];
  if (!context) {
    ContextOptions options;
    options.threads = threads;
    context = std::make_unique<Context>(options);
  }
  return *context;
}

int sweep_main(int argc, char** argv, const Sweep& sweep) {
  Command command;
  try {
    command = parse_command(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", sweep.name.c_str(), error.what());
    return 2;
  }
  for (const int signal : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGXFSZ})
    std::signal(signal, say_what_ran);
  Runner runner(sweep, command);
  if (!command.line.empty()) {
    const bool good = runner.run(parse_sweep_case(command.line));
    return runner.tally().report() && good ? 0 : 1;
  }
  const auto begin = std::chrono::steady_clock::now();
  const auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  const std::uint64_t seed = *command.seed;
  std::printf("%s: seed %llu\n", sweep.name.c_str(), static_cast<unsigned long long>(seed));
  std::fflush(stdout);
  std::int64_t count = 0, failures = 0;
  while (failures < command.failures &&
         (command.cases >= 0 ? count < command.cases : seconds() < command.seconds)) {
    failures += !runner.run(sweep.draw(seed * 1000000007u + static_cast<std::uint64_t>(count)));
    ++count;
  }
  std::printf("%s: %lld cases in %.0f s, seed %llu, %lld failed\n", sweep.name.c_str(),
              static_cast<long long>(count), seconds(), static_cast<unsigned long long>(seed),
              static_cast<long long>(failures));
  return runner.tally().report() && count > 0 && failures == 0 ? 0 : 1;
}

}  // namespace attend::test
