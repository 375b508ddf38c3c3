// The least program that writes a page: it must find the library attend::view, and what that needs.
#include <attend/view.h>

#include <cstdio>
#include <string>

int main() {
  const float numbers[] = {1.0f, 2.0f};
  const attend::ConstTensorView x(numbers, {1, 1, 2, 1});
  const attend::ViewRun run{.name = "consumer", .layers = {{.q = x, .k = x, .v = x}}};
  const std::string page = attend::view_page({&run, 1}, {.title = "two tokens"});
  const bool whole = page.starts_with("<!doctype html>") && page.ends_with("</html>\n");
  std::printf("a page of %zu bytes, %s\n", page.size(), whole ? "whole" : "BROKEN");
  return whole ? 0 : 1;
}
