# Puts the page together at build time and writes it as a C++ source:
#   cmake -D WEB=web -D OUT=assets.cpp -P assemble.cmake
# The script is the modules of web/modules.txt in their order, without the words that make them
# modules: all names of the top level are different, so nothing else has to change. The hashes are for
# the page's Content-Security-Policy.
cmake_minimum_required(VERSION 3.25)
file(STRINGS ${WEB}/modules.txt modules)
file(GLOB files RELATIVE ${WEB} ${WEB}/*.js)
foreach(file ${files})
  if(NOT file IN_LIST modules)
    message(FATAL_ERROR "web/${file} is not in web/modules.txt")
  endif()
endforeach()

set(Script "")
foreach(module ${modules})
  file(READ ${WEB}/${module} text)
  # At the beginning of a line only: what stands inside a line is no word of a module.
  string(REGEX REPLACE "\nimport [^\n]*;" "\n" text "\n${text}")
  string(REPLACE "\nexport " "\n" text "${text}")
  string(APPEND Script "${text}")
endforeach()
file(READ ${WEB}/style.css Style)
file(READ ${WEB}/index.html Shell)
if(Script MATCHES "</script|<!--")
  message(FATAL_ERROR "a module holds </script or <!--, which would end the page's script")
endif()

set(source "// Made by src/view/assemble.cmake from web/.\n#include \"view/assets.h\"\n")
string(APPEND source "namespace attend::view {\nnamespace {\n")
foreach(part Shell Style Script)
  string(HEX "${${part}}" bytes)
  string(REGEX REPLACE "(................................)" "\\1\n" bytes "${bytes}")
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
  string(APPEND source "constexpr unsigned char kBytesOf${part}[] = {\n${bytes}};\n")
endforeach()
string(APPEND source "}  // namespace\n")
foreach(part Shell Style Script)
  string(APPEND source
    "const Asset k${part} = {{reinterpret_cast<const char*>(kBytesOf${part}), sizeof kBytesOf${part}}, ")
  string(SHA256 hash "${${part}}")
  string(APPEND source "\"${hash}\"};\n")
endforeach()
string(APPEND source "}  // namespace attend::view\n")
file(WRITE ${OUT} "${source}")
