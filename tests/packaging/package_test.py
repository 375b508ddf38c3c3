#!/usr/bin/env python3
"""What an outside project meets when it uses attend. Each test is a function of this file.

The first test of a kind (static, shared) installs that library and then moves the installed tree;
all others look at the moved one, so whatever remembers its first place breaks. The shared one is made
of the objects that the tests' own build compiled (reuse.py).
"""
import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys

SOURCE = pathlib.Path(__file__).resolve().parents[2]
VERSION = ".".join(re.findall(r"^#define ATTEND_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)$",
                              (SOURCE / "include/attend/version.h").read_text(), re.M))

# The C and C++ runtime, and nothing else.
RUNTIME = re.compile(r"(libc|libm|libpthread|libstdc\+\+|libgcc_s|ld-linux-[\w-]+)\.so\.\d+")
# Names that a shared attend may show to others.
OURS = re.compile(r"(typeinfo for |typeinfo name for |vtable for )?attend::|attend_\w+$")


def run(*command, env=None, fails=False):
    """Runs a command that must succeed (or fail), and returns what it printed."""
    command = [str(word) for word in command]
    print("+", " ".join(command), flush=True)
    done = subprocess.run(command, env={**os.environ, **(env or {})}, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if (done.returncode != 0) != fails:
        sys.exit(f"{done.stdout}\nended with {done.returncode}: {' '.join(command)}")
    return done.stdout


def expect(found, wanted, what):
    if found != wanted:
        sys.exit(f"{what}: found {found}, wanted {wanted}")
    print(f"{what}: {found}")


class Package:
    """One kind of library, installed."""

    def __init__(self, args, kind):
        self.args = args
        self.kind = kind
        self.folder = pathlib.Path(args.folder) / kind
        self.prefix = self.folder / "moved"

    def cmake(self, source, build, *definitions):
        reuse = (sys.executable, SOURCE / "tests/packaging/reuse.py", self.args.build,
                 self.args.launcher or "none")   # CMake drops an empty word
        run("cmake", "-G", self.args.generator, "-S", source, "-B", build, "--no-warn-unused-cli", "-DATTEND_CUDA=OFF",
            f"-DCMAKE_C_COMPILER={self.args.c_compiler}", f"-DCMAKE_CXX_COMPILER={self.args.compiler}",
            f"-DCMAKE_CXX_COMPILER_LAUNCHER={';'.join(map(str, reuse))}",
            f"-DCMAKE_C_FLAGS={self.args.flags}", f"-DCMAKE_CXX_FLAGS={self.args.flags}",
            f"-DCMAKE_BUILD_TYPE={self.args.build_type}", *definitions)
        run("cmake", "--build", build)

    def find(self, pattern):
        found = sorted(self.prefix.rglob(pattern))
        if not found:
            sys.exit(f"{pattern} is not in {self.prefix}")
        return found[0]

    def library(self):
        return self.find("libattend.so" if self.kind == "shared" else "libattend.a")

    def consumer(self, name):
        """A copy of the consumer's sources, away from attend's."""
        copy = self.folder / name
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(SOURCE / "tests/consumer", copy)
        return copy

    def run_program(self, program):
        run(program, env={"LD_LIBRARY_PATH": str(self.library().parent)})


def install(package):
    build = pathlib.Path(package.args.build)   # where these tests are built, with the static library
    first = package.folder / "prefix"
    for old in (first, package.prefix):
        shutil.rmtree(old, ignore_errors=True)
    if package.kind == "shared":
        build = package.folder / "build"
        package.cmake(SOURCE, build, "-DATTEND_WERROR=ON", "-DATTEND_BUILD_TESTS=OFF", "-DATTEND_BUILD_EXAMPLES=OFF",
                      "-DBUILD_SHARED_LIBS=ON", f"-DATTEND_MPI={package.args.mpi}")
    run("cmake", "--install", build, "--prefix", first)
    first.rename(package.prefix)

    for path in package.prefix.rglob("*"):
        if path.suffix in (".cmake", ".pc", ".h"):
            text = path.read_text()
            for place in (first, build, SOURCE):
                if str(place) in text:
                    sys.exit(f"{path} remembers {place}")
    expect(run(package.prefix / "bin/attend", "--version").strip(), f"attend {VERSION}",
           "the moved command")
    for file in ("man/man1/attend.1", "bash-completion/completions/attend",
                 "zsh/site-functions/_attend"):
        if not (package.prefix / "share" / file).stat().st_size:
            sys.exit(f"share/{file} is empty")
    headers = sorted(str(h.relative_to(package.prefix / "include"))
                     for h in (package.prefix / "include").rglob("*") if h.is_file())
    wanted = {f"attend/{h.name}" for h in (SOURCE / "include/attend").glob("*.h")}
    expect(headers, sorted(wanted if package.args.mpi == "ON" else wanted - {"attend/mpi.h"}), "installed headers")


def find_package(package):
    source = package.consumer("find_package")
    here = (f"-DCMAKE_PREFIX_PATH={package.prefix}",)
    package.cmake(source, source / "build", *here, f"-DATTEND_VERSION={VERSION}")
    package.run_program(source / "build/consumer")
    if (source / "build/consumer_view").exists():
        sys.exit("the component view came unasked")
    package.cmake(source, source / "build", *here, f"-DATTEND_VERSION={VERSION}", "-DATTEND_COMPONENTS=view")
    package.run_program(source / "build/consumer_view")

    # Programs written for another minor version before 1.0, or another major one, must not get this.
    major, minor, _ = map(int, VERSION.split("."))
    others = {f"{major}.{minor + 1}", f"{major + 1}.0"}
    others |= {f"0.{minor - 1}"} if major == 0 else {f"{major - 1}.0"}
    for other in sorted(others):
        refused = run("cmake", "-S", source, "-B", source / "build", *here,
                      f"-DATTEND_VERSION={other}", fails=True)
        if "compatible with requested version" not in " ".join(refused.split()):
            sys.exit(f"version {other} is refused for another reason:\n{refused}")


def mpi(package):
    """The component mpi, by CMake and by pkg-config with the compiler of that MPI; or why it is not there."""
    source = package.consumer("mpi")
    words = (source, source / "build", f"-DCMAKE_PREFIX_PATH={package.prefix}", f"-DATTEND_VERSION={VERSION}",
             "-DATTEND_COMPONENTS=mpi")
    if package.args.mpi != "ON":
        refused = run("cmake", "-S", words[0], "-B", words[1], *words[2:], fails=True)
        if "built without MPI" not in " ".join(refused.split()):
            sys.exit(f"the component mpi is refused for another reason:\n{refused}")
        return
    package.cmake(*words)
    package.run_program(source / "build/consumer_mpi")
    env = {"PKG_CONFIG_LIBDIR": str(package.find("attend-mpi.pc").parent)}
    expect(run("pkg-config", "--modversion", "attend-mpi", env=env).strip(), VERSION, "attend-mpi.pc")
    flags = run("pkg-config", "--cflags", "--libs", "attend-mpi", env=env).split()
    run(package.args.mpi_compiler, *package.args.flags.split(), "-std=c++20", source / "mpi.cpp", "-o", source / "by_pkg_config",
        *flags)
    package.run_program(source / "by_pkg_config")


def pkg_config(package):
    source = package.consumer("pkg_config")
    env = {"PKG_CONFIG_LIBDIR": str(package.find("attend.pc").parent)}
    for library, program in (("attend", "main"), ("attend-view", "view")):
        expect(run("pkg-config", "--modversion", library, env=env).strip(), VERSION, f"{library}.pc")
        for static in [[], ["--static"]] if package.kind == "static" else [[]]:
            flags = run("pkg-config", "--cflags", "--libs", *static, library, env=env).split()
            run(package.args.compiler, *package.args.flags.split(), "-std=c++20",
                source / f"{program}.cpp", "-o", source / program, *flags)
            package.run_program(source / program)


def c_pkg_config(package):
    """The command that the example in C says compiles it."""
    source = package.consumer("c_pkg_config")
    example = SOURCE / "examples/c_api.c"
    shutil.copy(example, source)
    command = re.match(r"/\* .* Compile with:\s+\*?\s*cc (.*?) \*/", example.read_text(), re.S)[1]
    flags = f"{package.args.flags} -o example"
    run("sh", "-c", f"cd {source} && {package.args.c_compiler} {command} {flags}",
        env={"PKG_CONFIG_LIBDIR": str(package.find("attend.pc").parent)})
    package.run_program(source / "example")


def c_find_package(package):
    for languages in ("C", "C;CXX"):
        source = package.consumer("c_find_package") / "c"
        shutil.copy(SOURCE / "examples/c_api.c", source)
        package.cmake(source, source / "build", f"-DCMAKE_PREFIX_PATH={package.prefix}",
                      f"-DATTEND_VERSION={VERSION}", f"-DLANGUAGES={languages}")
        package.run_program(source / "build/consumer")


def fetch_content(package):
    """As a part of another project: only the library is built, with that project's settings."""
    source = package.consumer("fetch_content")
    package.cmake(source, source / "build", f"-DATTEND_SOURCE={SOURCE}", "-DATTEND_WERROR=ON")
    run(source / "build/consumer")
    if list(source.rglob("libattend_view*")):
        sys.exit("the page's writer was built, and nobody links it")
    package.cmake(source, source / "build", "-DATTEND_COMPONENTS=view")
    run(source / "build/consumer_view")
    inside = source / "build/_deps/attend-build"
    if "attendConfig" in (inside / "cmake_install.cmake").read_text():
        sys.exit("attend's install rules became part of the consumer's")
    for part in ("tests", "examples"):
        if (inside / part).exists():
            sys.exit(f"attend's {part} were built for the consumer")


def dependencies(package):
    """A shared attend needs the C and C++ runtime only, and carries its own name and version."""
    dynamic = run(package.args.readelf, "-d", "-W", package.library())
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)
    expect([name for name in needed if not RUNTIME.fullmatch(name)], [], "needed and not runtime")
    major, minor, _ = VERSION.split(".")
    soname = f"libattend.so.{'0.' + minor if major == '0' else major}"
    expect(re.findall(r"\(SONAME\).*\[(.*)\]", dynamic), [soname], "SONAME")
    expect(package.library().resolve().name, f"libattend.so.{VERSION}", "file")
    print("needed:", " ".join(needed))


def symbols(package):
    """A shared attend shows names of attend and no others."""
    lines = run(package.args.nm, "-D", "-C", "--defined-only", package.library()).splitlines()
    names = [line.split(maxsplit=2)[2] for line in lines]
    expect([name for name in names if not OURS.match(name)], [], "exported and not attend's")
    for wanted in ("attend::attention(", "attend::attention_backward(", "attend::merge(",
                   "attend::Context::Context(", "typeinfo for attend::InvalidArgument"):
        if not any(name.startswith(wanted) for name in names):
            sys.exit(f"{wanted} is not exported")
    print(f"exported: {len(names)} names")


def headers(package):
    """Each public header compiles alone, and twice in a row; that of the component mpi needs an MPI."""
    for header in sorted({*(package.prefix / "include/attend").glob("*.h")} - {package.prefix / "include/attend/mpi.h"}):
        source = package.folder / "alone.cpp"
        line = f"#include <attend/{header.name}>\n"
        source.write_text(line + line)
        run(package.args.compiler, "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Wpedantic",
            "-Werror", "-I", package.prefix / "include", source)


TESTS = (install, find_package, mpi, pkg_config, c_pkg_config, c_find_package, fetch_content, dependencies,
         symbols, headers)

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=("static", "shared"))
    parser.add_argument("test", choices=[test.__name__ for test in TESTS])
    parser.add_argument("--folder", required=True, help="where to build and install")
    parser.add_argument("--build", required=True, help="where the static library is built")
    parser.add_argument("--generator", default="Ninja")
    parser.add_argument("--build-type", default="Release")
    parser.add_argument("--compiler", default="g++")
    parser.add_argument("--c-compiler", default="gcc")
    parser.add_argument("--launcher", default="", help="ccache, or nothing")
    parser.add_argument("--flags", default="", help="for every compilation")
    parser.add_argument("--mpi", default="OFF", help="whether the component mpi is built: ON or OFF")
    parser.add_argument("--mpi-compiler", default="mpicxx", help="of the MPI that it is built for")
    parser.add_argument("--readelf", default="readelf")
    parser.add_argument("--nm", default="nm")
    arguments = parser.parse_args()
    chosen = {test.__name__: test for test in TESTS}[arguments.test]
    chosen(Package(arguments, arguments.kind))
