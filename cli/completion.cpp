// attend completion bash|zsh: scripts that complete commands, flags and the words a flag takes,
// made from the same App that reads the command line.
#include "command.h"
#include "words.h"

#include <iostream>

namespace attend::cli {
namespace {

std::string joined(const std::vector<std::string>& words) {
  std::string line;
  for (const std::string& word : words) line += (line.empty() ? "" : " ") + word;
  return line;
}

// compgen splits at spaces, and so no word may have one; none has.
void print_bash(const CLI::App& app) {
  std::cout << "# bash completion of attend; made by `attend completion bash`\n"
               "_attend() {\n"
               "  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]}\n"
               "  local command=${COMP_WORDS[1]} words= files=\n"
               "  COMPREPLY=()\n"
               "  if ((COMP_CWORD == 1)); then\n"
               "    words='"
            << joined(command_names(app)) << ' ' << joined(flag_names(app))
            << "'\n"
               "  else\n"
               "    case $command:$previous in\n";
  for (const CLI::App* command : app.get_subcommands({}))
    for (const CLI::Option* option : command->get_options())
      if (const auto words = choices(*option); !words.empty() && !option->get_positional())
        std::cout << "      " << command->get_name() << ":--" << option->get_lnames()[0]
                  << ") words='" << joined(words) << "' ;;\n";
      else if (takes_value(*option))
        std::cout << "      " << command->get_name() << ":--" << option->get_lnames()[0]
                  << ") return ;;\n";  // a number, or a file: bash's own completion
  std::cout << "      *) case $command in\n";
  for (const CLI::App* command : app.get_subcommands({}))
    std::cout << "        " << command->get_name() << ") words='"
              << joined(positional_words(*command)) << ' ' << joined(flag_names(*command)) << "'"
              << (takes_files(*command) ? " files=1" : "") << " ;;\n";
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

void print_zsh(const CLI::App& app) {
  std::cout << "#compdef attend\n# zsh completion of attend; made by `attend completion zsh`\n"
               "_attend() {\n"
               "  local -a commands\n"
               "  commands=(\n";
  for (const CLI::App* command : app.get_subcommands({}))
    std::cout << "    '" << command->get_name() << ':' << zsh(command->get_description()) << "'\n";
  std::cout << "  )\n"
               "  if ((CURRENT == 2)); then\n"
               "    _describe command commands\n"
               "    _arguments '--help[help]' '--version[version]'\n"
               "    return\n"
               "  fi\n"
               "  local command=$words[2]\n"
               "  shift words; ((CURRENT--))\n"
               "  case $command in\n";
  for (const CLI::App* command : app.get_subcommands({})) {
    std::cout << "    " << command->get_name() << ")\n      _arguments";
    for (const CLI::Option* option : command->get_options()) {
      const std::string of_choice = "(" + joined(choices(*option)) + ")";
      if (option->get_positional()) {
        std::cout << " \\\n        '" << (takes_files(*command) ? "*:" : "1:")
                  << option->get_name(true) << ':';
        if (!takes_files(*command)) std::cout << of_choice << "'";
        else if (of_choice == "()") std::cout << "_files'";
        else std::cout << "{ compadd " << joined(choices(*option)) << "; _files }'";
        continue;
      }
      std::cout << " \\\n        '--" << option->get_lnames()[0] << '['
                << zsh(option->get_description()) << ']';
      if (takes_value(*option))
        std::cout << ":value:" << (of_choice != "()" ? of_choice : "_files");
      std::cout << "'";
    }
    std::cout << "\n      ;;\n";
  }
  std::cout << "  esac\n}\n_attend \"$@\"\n";
}

}  // namespace

void add_completion(Program& program) {
  auto shell = std::make_shared<std::string>("bash");
  CLI::App& app = program.add(
      "completion", "Prints the completion script of a shell.",
      "  attend completion bash > ~/.local/share/bash-completion/completions/"
      "attend",
      [shell, &program](const Common&) {
        if (*shell == "bash") print_bash(program.app());
        else print_zsh(program.app());
        return kOk;
      },
      false);
  one_of(app.add_option("shell", *shell, "Which shell; bash if not said"), {"bash", "zsh"});
}

}  // namespace attend::cli
