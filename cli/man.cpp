// attend man: the manual page, made from the same App that reads the command line.
#include "command.h"

#include <iostream>

namespace attend::cli {
namespace {

// A text for roff: a backslash, a leading dot or quote, and hyphens that are typed have meanings.
std::string roff(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\') out += "\\e";
    else if (c == '-') out += "\\-";
    else if ((c == '.' || c == '\'') && (out.empty() || out.back() == '\n'))
      out += std::string("\\&") + c;
    else out += c;
  }
  return out;
}

void print_options(const CLI::App& app) {
  for (const std::string& group : app.get_groups()) {
    const auto options =
        app.get_options([&](const CLI::Option* option) { return option->get_group() == group; });
    if (options.empty()) continue;
    if (group != "Options") std::cout << ".PP\n" << roff(group) << ":\n";
    for (const CLI::Option* option : options) {
      const bool positional = option->get_positional();
      std::cout << ".TP\n\\fB" << roff(option->get_name(positional, !positional)) << "\\fR";
      if (option->get_items_expected_max() > 0 && !positional)
        std::cout << " \\fI" << roff(type_of(*option)) << "\\fR";
      std::cout << '\n' << roff(option->get_description()) << '\n';
    }
  }
}

int man(CLI::App& app) {
  std::cout << ".TH ATTEND 1 \"\" \"attend " << version() << "\" \"User Commands\"\n"
            << ".SH NAME\nattend \\- multi\\-head attention from the shell\n"
            << ".SH SYNOPSIS\n.B attend\n\\fICOMMAND\\fR [\\fIOPTIONS\\fR]\n"
            << ".SH DESCRIPTION\n"
            << roff(app.get_description()) << '\n'
            << "Results go to standard output, everything else to standard error.\n";
  print_options(app);
  std::cout << ".SH COMMANDS\n";
  for (const CLI::App* command : app.get_subcommands({})) {
    std::cout << ".SS \"attend " << command->get_name() << "\"\n"
              << roff(command->get_description()) << '\n';
    print_options(*command);
    std::cout << ".PP\n.nf\n" << roff(command->get_footer()) << "\n.fi\n";
  }
  std::cout
      << ".SH ENVIRONMENT\n"
         ".TP\n.B ATTEND_KERNEL\n"
         "Kernels to use in place of the planner's choice, one per operation:\n"
         "forward:reference.forward,backward:reference.backward\n"
         ".TP\n.B ATTEND_THREADS\n"
         "The number of threads, where \\fB\\-\\-threads\\fR is not given or 0; else one for each "
         "processor.\n"
         ".TP\n.B NO_COLOR\nIf set and not empty, no colours are used.\n"
         ".SH \"EXIT STATUS\"\n"
         ".TP\n.B 0\nSuccess.\n.TP\n.B 1\nA check failed.\n"
         ".TP\n.B 2\nA flag or an input cannot be accepted, or a file cannot be read or written; "
         "one line on standard error says why.\n"
         ".TP\n.B 3\nThere is not enough memory.\n.TP\n.B 4\nA device failed.\n"
         ".TP\n.B 130\nEnded by Ctrl\\-C. \\fBattend train\\fR finishes its step and writes the\n"
         "checkpoint and the plot that it was asked for.\n";
  return kOk;
}

}  // namespace

void add_man(Program& program) {
  program.add(
      "man", "Prints the manual page.", "  attend man | man -l -",
      [&program](const Common&) { return man(program.app()); }, false);
}

}  // namespace attend::cli
