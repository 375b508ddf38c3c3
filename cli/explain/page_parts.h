// The style and the program of the page of `attend explain --html` (web/explain), as CMake put them
// into a source file, and their SHA-256 in hexadecimal digits.
#pragma once

namespace attend::cli {

extern const char* const kExplainStyle;
extern const char* const kExplainStyleHash;
extern const char* const kExplainProgram;
extern const char* const kExplainProgramHash;

}  // namespace attend::cli
