// What every C++ header of attend rests on: C++20, asked for in words rather than by a page of
// errors, and attributes by which clang sees a view that outlives its tensor. c_api.h needs
// neither.
#pragma once

#if __cplusplus < 202002L
#error attend needs C++20: compile with -std=c++20, or use attend/c_api.h
#include <nothing_else_to_report>  // ends the compilation here
#endif

#ifdef __clang__
#define ATTEND_OWNER [[gsl::Owner]]
#define ATTEND_POINTER [[gsl::Pointer]]
#define ATTEND_LIFETIMEBOUND [[clang::lifetimebound]]
#else
#define ATTEND_OWNER
#define ATTEND_POINTER
#define ATTEND_LIFETIMEBOUND
#endif
