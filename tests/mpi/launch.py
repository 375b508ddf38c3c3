#!/usr/bin/env python3
"""Runs a program on several ranks of one of the MPIs, on this machine.

    launch.py {open_mpi|mpich} RANKS PROGRAM ARGUMENTS...

All ranks share the cores that there are. A job that does not end within five minutes is ended, with what it
printed.
"""
import os
import signal
import subprocess
import sys

SECONDS = 300

# Debian's launchers of both can be installed side by side. Open MPI wants to be told that ranks may share cores,
# and that it is root; its copies between processes by one system call are forbidden in many containers.
LAUNCHERS = {
    "open_mpi": ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n"],
    "mpich": ["mpirun.mpich", "-bind-to", "none", "-n"],
}
ENVIRONMENT = {
    "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "ATTEND_THREADS": "1",
}


def start(mpi, ranks, command, **more):
    """The launcher as a process, in a session of its own: its ranks are ended with it if need be."""
    return subprocess.Popen([*LAUNCHERS[mpi], str(ranks), *map(str, command)], text=True, stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
                            env={**os.environ, **ENVIRONMENT, **more})


def finish(job, seconds=SECONDS):
    """(exit status, what was printed) of a job that was started; None for the status of one that had to be ended."""
    try:
        output = job.communicate(timeout=seconds)[0]
        return job.returncode, output
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, signal.SIGKILL)
        return None, job.communicate()[0]


def main(mpi, ranks, *command):
    status, output = finish(start(mpi, ranks, command))
    print(output)
    if status is None:
        print(f"did not end within {SECONDS} s")
    return 1 if status is None or status != 0 else 0


if __name__ == "__main__":
    if len(sys.argv) < 4 or sys.argv[1] not in LAUNCHERS:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
