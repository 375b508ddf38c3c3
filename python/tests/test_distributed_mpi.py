"""Attention over processes under mpirun, through mpi4py. Skipped where there is no MPI, or no mpi4py."""
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

import attend

FOLDER = pathlib.Path(__file__).parent
MPIRUN = shutil.which("mpirun.openmpi")
pytestmark = [
    pytest.mark.skipif(MPIRUN is None, reason="no Open MPI: apt-get install openmpi-bin"),
    pytest.mark.skipif(importlib.util.find_spec("mpi4py") is None, reason="no mpi4py"),
]
ENVIRONMENT = {
    "OMPI_MCA_btl_vader_single_copy_mechanism": "none", "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "ATTEND_THREADS": "1",
}


def run(ranks, *words):
    """Of a job that ends by itself, however slow the machine is."""
    path = str(pathlib.Path(attend.__file__).parents[1])
    return subprocess.run(
        [MPIRUN, "--oversubscribe", "--bind-to", "none", "-n", str(ranks), sys.executable, *map(str, words)],
        env={**os.environ, **ENVIRONMENT, "PYTHONPATH": path}, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=300)


@pytest.mark.parametrize("what", ["bits", "mistake", "groups"])
def test_processes_do_what_threads_do(what):
    done = run(2, FOLDER / "mpi_ranks.py", what)
    assert done.returncode == 0 and done.stdout.count("well") == 2, done.stdout + done.stderr


def test_a_process_that_stops_ends_the_job_in_time(tmp_path):
    done = run(3, FOLDER / "mpi_ranks.py", "stop", tmp_path)
    assert done.returncode != 0 and "well" not in done.stdout
    errors = [path.read_text() for path in tmp_path.iterdir()]
    assert errors and all("rank 1" in error for error in errors), done.stdout + done.stderr


def test_a_process_that_is_interrupted_ends_the_job():
    done = run(2, FOLDER / "mpi_ranks.py", "interrupt")
    assert done.returncode != 0 and "KeyboardInterrupt" in done.stderr and "well" not in done.stdout, done.stdout + done.stderr


def test_the_example_runs():
    done = run(3, FOLDER.parents[1] / "examples" / "distributed.py")
    assert done.returncode == 0 and done.stdout.count("the bits of one process: yes") == 3, done.stdout + done.stderr
