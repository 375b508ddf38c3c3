#!/usr/bin/env python3
"""What becomes of a job under mpirun if a rank dies, stops, throws or is slow, in the middle of a call?

    faults_test.py {open_mpi|mpich} PROGRAM [--all]
    faults_test.py --self-test      what is said of jobs that are made up

PROGRAM is made of faults.cpp. A call has a number of transfers; something happens before the first, one in the
middle, or the last of them, with --all before each. Nobody may hang and nobody may be left over. With --all, when nothing
else runs, it must also be over within the time limit of the calls and five seconds. Without, a job is tried once more, with
more time, if nothing is wrong with it but that its ranks lost patience with others than the chosen one.
"""
import concurrent.futures
import os
import pathlib
import re
import sys
import tempfile
import time

import launch

RANKS = 3
TIMEOUT_MS = 700
PATIENT_MS = 10 * TIMEOUT_MS   # where the machine is so busy that others than the chosen rank are late
MOST_SECONDS = TIMEOUT_MS / 1000 + 5


# What a rank says that waited too long.
AWAITED = r"PeerError: .*: no answer from (ranks? .*) within"
LATE = re.compile(r"PeerError: .*: no answer from .* within \d+ ms\nanother call is refused\s*")


class Wrong(Exception):
    """What a job did that it should not do."""


class Job:
    """One run of the program, and what it left."""

    patience = 60   # seconds for processes that have been ended to be gone

    def __init__(self, mpi, program, scheme, fault, transfer, limit=TIMEOUT_MS):
        self.arguments = mpi, program, scheme, fault, transfer
        self.name = f"{mpi}, {scheme}, {fault} before transfer {transfer}"
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            timeout = limit if fault in ("stop", "throw") else 120_000
            job = launch.start(mpi, RANKS, [program, folder, scheme, fault, transfer, timeout])
            self.status, self.output = launch.finish(job, 200)
            self.ended = time.time()
            found = {path.name: path for path in folder.iterdir()}
            self.pids = [int(found[f"pid.{r}"].read_text()) for r in range(RANKS) if f"pid.{r}" in found]
            self.begun = max((path.stat().st_mtime for path in found.values() if path.name.startswith("pid.")), default=0)
            self.errors = {r: found[f"error.{r}"].read_text() for r in range(RANKS) if f"error.{r}" in found}

    def check(self, right, what):
        if not right:
            raise Wrong(f"{self.name}: {what}\nstatus {self.status}, errors {self.errors}\n{self.output}")

    def is_over(self):
        """Ended with a status, by itself, and all its processes are gone."""
        self.check(self.status is not None, "did not end")
        self.check(self.status != 0, "ended as if nothing had been")
        self.check(len(self.pids) == RANKS, "not all ranks began")
        end = time.time() + self.patience
        left = [pid for pid in self.pids if is_running(pid)]
        while left and time.time() < end:
            time.sleep(0.01)
            left = [pid for pid in left if is_running(pid)]
        self.check(not left, f"processes {left} are left")

    def has_errors(self, ranks, word):
        self.check(sorted(self.errors) == ranks, f"ranks {ranks} should have got an error")
        for rank in ranks:
            self.check(re.search(word, self.errors[rank]), f"rank {rank} should say {word!r}")


    def awaited(self, rank):
        """The ranks that it got no answer from."""
        return {int(r) for r in re.findall(r"\d+", re.search(AWAITED, self.errors[rank])[1])}

    def is_only_late(self):
        """It ended as it should, and every rank that has an error waited too long, or is the one that threw."""
        fault = self.arguments[3]
        self.is_over()
        late = {rank for rank, error in self.errors.items() if LATE.fullmatch(error)}
        thrown = {1} if fault == "throw" and "something else went wrong" in self.errors.get(1, "") else set()
        return fault in ("stop", "throw") and bool(late) and late | thrown == set(self.errors)


def is_running(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def killed(job, strict):
    job.is_over()
    if strict:
        job.check(job.ended - job.begun < MOST_SECONDS, f"took {job.ended - job.begun:.1f} s")


def stopped(job, strict):
    """The others notice within the time limit; they end the job, and the rank that stands still with it."""
    job.is_over()
    job.has_errors([0, 2], AWAITED)
    job.has_errors([0, 2], "another call is refused")
    # A rank may need nothing more of the one that stands still, but something of the other, who waits for that one.
    for rank in (0, 2):
        job.check(1 in job.awaited(rank) or 1 in job.awaited(2 - rank) and 2 - rank in job.awaited(rank),
                  f"rank {rank} should wait for rank 1, or for one that does")
    if strict:
        job.check(job.ended - job.begun < MOST_SECONDS, f"took {job.ended - job.begun:.1f} s")


def threw(job, strict):
    """The one that threw has its own error; the others notice within their time limit."""
    job.is_over()
    job.has_errors([0, 1, 2], "rror")
    job.check("something else went wrong" in job.errors[1], "rank 1 should have its own error")


def was_slow(job, strict):
    job.check(job.status == 0 and not job.errors, "a slow rank should do no harm")


CHECKS = {"kill": killed, "stop": stopped, "throw": threw, "slow": was_slow}


def transfers_of(mpi, program, scheme):
    job = Job(mpi, program, scheme, "none", 0)
    job.check(job.status == 0, "failed, though nothing happened")
    return int(job.output.split("transfers ")[1].split()[0])


def main(mpi, program, *more):
    everything = more == ("--all",)
    cases = []
    for scheme in ("gather", "heads"):
        last = transfers_of(mpi, program, scheme) - 1
        print(f"{scheme}: {last + 1} transfers")
        some = range(last + 1) if everything else (0, last // 2, last) if scheme == "gather" else (last // 3,)
        cases += [(scheme, fault, n) for fault in ("kill", "stop") for n in some]
        cases += [(scheme, "slow", 0)]
        cases += [(scheme, "throw", last // 2)] if everything or scheme == "heads" else []
    with concurrent.futures.ThreadPoolExecutor(1 if everything else 2) as pool:
        jobs = pool.map(lambda case: (case, Job(mpi, program, *case)), cases)
        for (scheme, fault, n), job in jobs:
            try:
                CHECKS[fault](job, everything)
            except Wrong as wrong:
                if everything or not job.is_only_late():
                    raise
                print(f"{wrong}\nonce more, with {PATIENT_MS} ms")
                job = Job(*job.arguments, limit=PATIENT_MS)
                CHECKS[fault](job, everything)
            print(f"{job.name}: as it should be, status {job.status}, over after {job.ended - job.begun:.1f} s", flush=True)


def self_test():
    late = "PeerError: attention: no answer from rank 2 within 700 ms\nanother call is refused\n"
    taken = late.replace("refused", "taken")
    other = "PeerError: a message from rank 2 failed: no\nanother call is refused\n"
    threw = "other error: something else went wrong\n"
    left = {"pids": [os.getpid()] * RANKS, "patience": 0}
    for again, fault, errors, more in (
            (True, "stop", {0: late, 2: late}, {}),
            (True, "throw", {0: late, 1: threw, 2: late}, {}),
            (True, "throw", {1: late}, {}),
            (False, "kill", {0: late}, {}),
            (False, "slow", {0: late}, {}),
            (False, "stop", {}, {}),
            (False, "stop", {0: late, 2: other}, {}),
            (False, "stop", {0: late, 2: taken}, {}),
            (False, "stop", {0: late, 1: threw}, {}),
            (False, "throw", {0: threw, 1: late}, {}),
            (False, "stop", {0: late, 2: late}, {"status": None}),
            (False, "stop", {0: late, 2: late}, {"status": 0}),
            (False, "stop", {0: late, 2: late}, left)):
        job = Job.__new__(Job)
        job.arguments, job.name, job.output = ("open_mpi", "faults", "gather", fault, 0), "made up", ""
        job.status, job.errors, job.pids = 3, errors, [1 << 30] * RANKS
        vars(job).update(more)
        try:
            found = job.is_only_late()
        except Wrong:
            found = False
        if found != again:
            raise Wrong(f"{fault}, {errors}, {more}: tried again: {found}")

    said = lambda whom: f"PeerError: attention: no answer from {whom} within 700 ms\nanother call is refused\n"
    for right, first, last in (
            (True, "rank 1", "rank 1"),
            (True, "ranks 1 and 2", "rank 1"),
            (True, "rank 1", "rank 0"),
            (True, "rank 2", "ranks 0 and 1"),
            (False, "rank 2", "rank 0"),
            (False, "rank 2", "rank 2"),
            (False, "rank 1", "rank 2")):
        job = Job.__new__(Job)
        job.name, job.output, job.status, job.pids = "made up", "", 3, [1 << 30] * RANKS
        job.errors = {0: said(first), 2: said(last)}
        try:
            stopped(job, False)
            found = True
        except Wrong:
            found = False
        if found != right:
            raise Wrong(f"rank 0 waits for {first}, rank 2 for {last}: right: {found}")


if __name__ == "__main__":
    if sys.argv[1:] == ["--self-test"]:
        sys.exit(self_test())
    if len(sys.argv) < 3 or sys.argv[1] not in launch.LAUNCHERS:
        sys.exit(__doc__)
    try:
        main(*sys.argv[1:])
    except Wrong as wrong:
        sys.exit(str(wrong))
