// attend man: the manual page, made from the same App that reads the command line.
#include "frame/program.h"

#include <algorithm>
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

void print_flags(const std::vector<FlagInfo>& flags) {
  std::vector<std::string> groups;
  for (const FlagInfo& flag : flags)
    if (std::find(groups.begin(), groups.end(), flag.group) == groups.end())
      groups.push_back(flag.group);
  for (const std::string& group : groups) {
    if (group != "Options") std::cout << ".PP\n" << roff(group) << ":\n";
    for (const FlagInfo& flag : flags) {
      if (flag.group != group) continue;
      std::cout << ".TP\n\\fB" << roff(flag.all_names) << "\\fR";
      if (flag.takes_value) std::cout << " \\fI" << roff(flag.value) << "\\fR";
      std::cout << '\n' << roff(flag.description) << '\n';
    }
  }
}

int man(const Program& program) {
  const Program::CommandInfo whole = program.about();
  std::cout << ".TH ATTEND 1 \"\" \"attend " << version() << "\" \"User Commands\"\n"
            << ".SH NAME\nattend \\- multi\\-head attention from the shell\n"
            << ".SH SYNOPSIS\n.B attend\n\\fICOMMAND\\fR [\\fIOPTIONS\\fR]\n"
            << ".SH DESCRIPTION\n"
            << roff(whole.description) << '\n'
            << "Results go to standard output, everything else to standard error.\n";
  print_flags(whole.flags);
  std::cout << ".SH COMMANDS\n";
  for (const Program::CommandInfo& command : program.commands()) {
    std::cout << ".SS \"attend " << command.name << "\"\n" << roff(command.description) << '\n';
    print_flags(command.flags);
    std::cout << ".PP\n.nf\n" << roff(command.footer) << "\n.fi\n";
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
      [&program](const Common&, const Flags&) { return man(program); }, false);
}

}  // namespace attend::cli
