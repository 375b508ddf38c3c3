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
    """(source, object, everything else) of a compiler's command; the order of the rest is kept."""
    source = target = None
    rest, words = [], iter(words)
    for word in words:
        if word == "-o":
            target = next(words)
        elif word == "-c":
            source = next(words)
        elif word in ("-MF", "-MT", "-MQ"):
            next(words)
        elif word not in ("-MD", "-MMD"):
            rest.append(word)
    return source, target, rest


def ready(build, command):
    """The object that this command would make, if the folder has it."""
    source, _, rest = essence(command)
    try:
        entries = json.loads((build / "compile_commands.json").read_text())
    except FileNotFoundError:
        return None
    for entry in entries:
        if source != entry["file"]:
            continue
        _, target, theirs = essence(shlex.split(entry["command"]))
        found = pathlib.Path(entry["directory"]) / target
        if theirs[-len(rest):] == rest and found.exists() and is_current(build, target):
            return found
    return None


def is_current(build, target):
    """Whether no file that the object was made of is newer than it, by what ninja knows of both."""
    listed = subprocess.run(["ninja", "-C", build, "-t", "deps", target], text=True, stdout=subprocess.PIPE)
    files = [build / line.strip() for line in listed.stdout.splitlines()[1:] if line.strip()]
    made = (build / target).stat().st_mtime
    return bool(files) and all(file.exists() and file.stat().st_mtime <= made for file in files)


build, launcher, *command = sys.argv[1:]
target = essence(command)[1]
found = ready(pathlib.Path(build), command) if target else None
if found is not None:
    shutil.copyfile(found, target)
else:
    command = command if launcher == "none" else [launcher, *command]
    os.execvp(command[0], command)
