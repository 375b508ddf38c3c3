// attend completion bash|zsh: scripts that complete commands, flags and the words a flag takes,
// made from the same App that reads the command line.
#include "frame/program.h"

#include <algorithm>
#include <iostream>

namespace attend::cli {
namespace {

using CommandInfo = Program::CommandInfo;

std::string joined(const std::vector<std::string>& words) {
  std::string line;
  for (const std::string& word : words) line += (line.empty() ? "" : " ") + word;
  return line;
}

std::vector<std::string> names_of(const std::vector<FlagInfo>& flags) {
  std::vector<std::string> names;
  for (const FlagInfo& flag : flags)
    if (!flag.positional) names.push_back(flag.name);
  return names;
}

// The words that a command's arguments may be.
std::vector<std::string> argument_words(const std::vector<FlagInfo>& flags) {
  std::vector<std::string> words;
  for (const FlagInfo& flag : flags)
    if (flag.positional) words.insert(words.end(), flag.words.begin(), flag.words.end());
  return words;
}

bool takes_files(const std::vector<FlagInfo>& flags) {
  return std::any_of(flags.begin(), flags.end(),
                     [](const FlagInfo& flag) { return flag.positional && flag.repeats; });
}

// compgen splits at spaces, and so no word may have one; none has.
void print_bash(const CommandInfo& program, const std::vector<CommandInfo>& commands) {
  std::vector<std::string> names;
  names.reserve(commands.size());
  for (const CommandInfo& command : commands) names.push_back(command.name);
  std::cout << "# bash completion of attend; made by `attend completion bash`\n"
               "_attend() {\n"
               "  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]}\n"
               "  local command=${COMP_WORDS[1]} words= files=\n"
               "  COMPREPLY=()\n"
               "  if ((COMP_CWORD == 1)); then\n"
               "    words='"
            << joined(names) << ' ' << joined(names_of(program.flags))
            << "'\n"
               "  else\n"
               "    case $command:$previous in\n";
  for (const CommandInfo& command : commands)
    for (const FlagInfo& flag : command.flags)
      if (!flag.words.empty() && !flag.positional)
        std::cout << "      " << command.name << ':' << flag.name << ") words='"
                  << joined(flag.words) << "' ;;\n";
      else if (flag.takes_value)
        std::cout << "      " << command.name << ':' << flag.name
                  << ") return ;;\n";  // a number, or a file: bash's own completion
  std::cout << "      *) case $command in\n";
  for (const CommandInfo& command : commands)
    std::cout << "        " << command.name << ") words='" << joined(argument_words(command.flags))
              << ' ' << joined(names_of(command.flags)) << "'"
              << (takes_files(command.flags) ? " files=1" : "") << " ;;\n";
  std::cout << "      esac ;;\n"
               "    esac\n"
               "  fi\n"
               "  mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$current\")\n"
               "  if [[ $files ]]; then   # words and files, as `attend explain` takes\n"
               "    local -a paths\n"
               "    mapfile -t paths < <(compgen -f -- \"$current\")\n"
               "    ((${#paths[@]} == 0)) || compopt -o filenames 2>/dev/null\n"
               "    COMPREPLY+=(\"${paths[@]}\")\n"
               "  fi\n"
               "}\n"
               "complete -o default -F _attend attend\n";
}

// A text inside '...' of zsh, in which _arguments gives brackets and colons a meaning.
std::string zsh(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\'') out += "'\\''";
    else if (c == '[' || c == ']' || c == ':' || c == '\\') out += std::string("\\") + c;
    else out += c;
  }
  return out;
}

void print_zsh(const std::vector<CommandInfo>& commands) {
  std::cout << "#compdef attend\n# zsh completion of attend; made by `attend completion zsh`\n"
               "_attend() {\n"
               "  local -a commands\n"
               "  commands=(\n";
  for (const CommandInfo& command : commands)
    std::cout << "    '" << command.name << ':' << zsh(command.description) << "'\n";
  std::cout << "  )\n"
               "  if ((CURRENT == 2)); then\n"
               "    _describe command commands\n"
               "    _arguments '--help[help]' '--version[version]'\n"
               "    return\n"
               "  fi\n"
               "  local command=$words[2]\n"
               "  shift words; ((CURRENT--))\n"
               "  case $command in\n";
  for (const CommandInfo& command : commands) {
    std::cout << "    " << command.name << ")\n      _arguments";
    const bool files = takes_files(command.flags);
    for (const FlagInfo& flag : command.flags) {
      const std::string of_words = flag.words.empty() ? "" : "(" + joined(flag.words) + ")";
      if (flag.positional) {
        std::cout << " \\\n        '" << (files ? "*:" : "1:") << flag.name << ':';
        if (!files) std::cout << of_words << "'";
        else if (flag.words.empty()) std::cout << "_files'";
        else std::cout << "{ compadd " << joined(flag.words) << "; _files }'";
        continue;
      }
      std::cout << " \\\n        '" << flag.name << '[' << zsh(flag.description) << ']';
      if (flag.takes_value) std::cout << ":value:" << (flag.words.empty() ? "_files" : of_words);
      std::cout << "'";
    }
    std::cout << "\n      ;;\n";
  }
  std::cout << "  esac\n}\n_attend \"$@\"\n";
}

}  // namespace

void add_completion(Program& program) {
  auto shell = std::make_shared<std::string>("bash");
  Flags& flags = program.add(
      "completion", "Prints the completion script of a shell.",
      "  attend completion bash > ~/.local/share/bash-completion/completions/"
      "attend",
      [shell, &program](const Common&, const Flags&) {
        if (*shell == "bash") print_bash(program.about(), program.commands());
        else print_zsh(program.commands());
        return kOk;
      },
      false);
  flags.add_word("shell", *shell, "Which shell; bash if not said", {"bash", "zsh"});
}

}  // namespace attend::cli
