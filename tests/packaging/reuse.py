#!/usr/bin/env python3
"""Stands before the compiler in a build of attend inside of a test:

    reuse.py BUILD LAUNCHER COMPILER ARGUMENTS...

An object that the folder BUILD holds, compiled by the same command from the same file, is taken from
there, unless a file that it was made of has changed since. Everything else is compiled, by way of LAUNCHER (ccache) if that is not "none". So a test that
builds the library another way takes as long as what is different, however busy the machine is.
"""
import json
import os
import pathlib
import shlex
import shutil
import subprocess
import sys


def essence(words):
    """(source, object, all other words in order, file for dependencies) of a compiler's command."""
    source = target = listed = None
    rest, words = [], iter(words)
    for word in words:
        if word == "-o":
            target = next(words)
        elif word == "-c":
            source = next(words)
        elif word == "-MF":
            listed = next(words)
        elif word in ("-MT", "-MQ"):
            next(words)
        elif word not in ("-MD", "-MMD"):
            rest.append(word)
    return source, target, rest, listed


def ready(build, command):
    """The object that this command would make and the files it was made of, if the folder has it."""
    source, _, rest, _ = essence(command)
    try:
        entries = json.loads((build / "compile_commands.json").read_text())
    except FileNotFoundError:
        return None, []
    for entry in entries:
        if not same_source(source, entry["file"]):
            continue
        _, target, theirs, _ = essence(shlex.split(entry["command"]))
        found = pathlib.Path(entry["directory"]) / target
        files = made_of(build, target)
        if theirs[-len(rest):] == rest and found.exists() and is_current(found, files):
            return found, files
    return None, []


def same_source(one, other):
    """Whether they are one file, or lists of the same files that are compiled together, each of its build."""
    one, other = pathlib.Path(one), pathlib.Path(other)
    return one == other or (one.parent.name == other.parent.name == "Unity" and one.name == other.name and
                            other.exists() and one.read_bytes() == other.read_bytes())


def made_of(build, target):
    """The files that an object was made of, by what ninja knows."""
    listed = subprocess.run(["ninja", "-C", build, "-t", "deps", target], text=True, stdout=subprocess.PIPE)
    return [build / line.strip() for line in listed.stdout.splitlines()[1:] if line.strip()]


def is_current(found, files):
    """Whether no file that the object was made of is newer than it."""
    made = found.stat().st_mtime
    return bool(files) and all(file.exists() and file.stat().st_mtime <= made for file in files)


build, launcher, *command = sys.argv[1:]
_, target, _, listed = essence(command)
found, files = ready(pathlib.Path(build), command) if target else (None, [])
if found is not None:
    shutil.copyfile(found, target)
    if listed is not None:   # or the build would never make the object again
        paths = (str(file.resolve()).replace(" ", "\\ ") for file in files)
        pathlib.Path(listed).write_text(f"{target}: {' '.join(paths)}\n")
else:
    command = command if launcher == "none" else [launcher, *command]
    os.execvp(command[0], command)
