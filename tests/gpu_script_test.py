#!/usr/bin/env python3
"""tools/test_gpu.sh from end to end where there is no GPU: the GPU, CMake, the sanitizer and the programs are shell
scripts that say what real ones said. Asked is that each step runs, and that one JSON tells what all of them found."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench"))
import gpu_report

TESTS = 6 + 6    # programs of tests that are asked once, and under compute-sanitizer
PASSED = 'echo "[  PASSED  ] 5 tests."; echo "[  SKIPPED ] 2 tests, listed below:"'
PROPERTIES = ["gradient"] + [f"traps_{name}" for name in "meaning cache extremes hidden layout sizes threads".split()] + [
    f"properties_{name}" for name in "rows extreme nan_place parts memory merge algebra hidden values".split()]
TABLE = """  cuda.sm90.forward bf16     %d runs, 3 declined, largest error 0.%d00 of the allowed
  cuda.portable.forward f32  20 runs, 0 declined, largest error 0.250 of the allowed
  cpu.x.forward f32          skipped: not on this machine, or not of this type"""


class Script(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.tree = self.folder / "tree"
        self.environment = os.environ | {"PATH": f"{self.folder}/bin:/usr/bin:/bin", "TREE": str(self.tree), "OUT": "",
                                         "PYTHON": str(self.folder / "bin/python"), "GOES_ON": ""}
        self.script("bin/nvidia-smi", 'echo "NVIDIA H200, 580.1"')
        self.script("bin/nproc", "echo 2")
        self.script("bin/cmake", "exit 0")
        self.script("bin/compute-sanitizer", 'shift 4; exec "$@"')
        self.script("bin/python", f"""case "$*" in
  *pytest*) echo "12 passed, 3 skipped, 1 xfailed in 4.56s" ;;
  bench/gpu.py*) echo '{{"machine": {{"gpu": "NVIDIA H200"}}, "cases": [1]}}' >"${{@: -1}}" ;;
esac""")
        for name in ("cuda", "cuda_layers", "cuda_driver", "cuda_launch", "cuda_errors", "inspect"):
            self.program(name, PASSED)
        self.program("conformance", f"n=$GTEST_SHARD_INDEX; printf '{TABLE}\\n' $((10 + ${{n:-0}})) $((4 + ${{n:-0}}))")
        self.program("pairs", 'echo "bf16, part 1: 100 runs, 7 declined"; ' + PASSED)
        for name in PROPERTIES:
            self.program(name, f'echo "  ${{ATTEND_ONLY}}forward took 9 cases"; {PASSED}')

    def script(self, name, text):
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"#!/usr/bin/env bash\n{text}\n")
        file.chmod(0o755)

    def program(self, name, text):
        self.script(f"tree/tests/{name}_test", text)

    def run_script(self, *steps, **more):
        done = subprocess.run(["bash", str(ROOT / "tools/test_gpu.sh"), *steps], env=self.environment | more, text=True,
                              capture_output=True, timeout=300)
        file = self.tree / "out/gpu.json"
        return done, json.loads(file.read_text()) if file.exists() else None

    def test_one_file_holds_all_that_was_found(self):
        done, found = self.run_script()
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        self.assertEqual(found["cases"], [1])    # what bench measured, where bench/report.py looks for it
        asked = found["asked"]
        self.assertEqual(asked["gpu"], "NVIDIA H200, 580.1")
        steps = asked["steps"]
        self.assertEqual([name for name, step in steps.items() if not step["passed"]], [])
        self.assertEqual(steps["table_as_it_is"]["said"], {"wrong": 0, "kernels": {
            "cuda.sm90.forward bf16": {"runs": 21, "declined": 6, "largest_error": 0.5},
            "cuda.portable.forward f32": {"runs": 40, "declined": 0, "largest_error": 0.25}}})
        self.assertEqual(steps["option_pairs"]["said"], {
            "passed": 10, "skipped": 4, "failed": 0, "types": {"bf16": {"runs": 200, "declined": 14}}})
        self.assertEqual(steps["python"]["said"], {"passed": 12, "skipped": 3, "xfailed": 1})
        self.assertEqual(set(steps["properties"]["said"]),
                         {f"{name}.cuda.{kind}" for name in PROPERTIES for kind in ("sm90", "portable")})
        self.assertEqual(steps["properties"]["said"]["properties_rows.cuda.sm90"], {
            "passed": 40, "skipped": 16, "failed": 0, "cases": {"cuda.sm90.forward": 72}})
        for name in ("memcheck_cuda_test", "memcheck_layers", "synccheck_pages", "initcheck_layers"):
            self.assertEqual(steps[name]["said"], {"passed": 5, "skipped": 2, "failed": 0})
        self.assertIn("table_d256: 61 runs, 0 wrong", done.stdout)
        self.assertEqual(gpu_report.asked(steps), (
            f"Asked of the same build: 305 runs of kernels from the table of cases, 0 wrong; {12 + 10 + 5 * TESTS + 80 * len(PROPERTIES)} "
            f"tests passed, {3 + 4 + 2 * TESTS + 32 * len(PROPERTIES)} were skipped, 0 failed. Steps that failed: none."))

    def test_what_fails_is_told(self):
        self.program("cuda", 'echo "[  FAILED  ] 1 test, listed below:"; exit 1')
        self.program("conformance", "echo 'reproduce: conformance_test --case=1'; exit 1")
        done, found = self.run_script("cases")
        self.assertEqual(done.returncode, 1)
        self.assertIn("cuda_test: FAILED (1)", done.stdout)
        steps = found["asked"]["steps"]
        self.assertEqual(steps["cuda_test"]["said"], {"passed": 0, "skipped": 0, "failed": 1})
        self.assertEqual(steps["table_d64"]["said"]["wrong"], 2)
        self.assertFalse(steps["table_d64"]["passed"])
        self.assertNotIn("cases", found)

    def test_steps_one_by_one_end_in_one_file(self):
        self.run_script("bench")
        done, found = self.run_script("python", GOES_ON="1")
        self.assertEqual(set(found["asked"]["steps"]), {"build", "bench", "python"})
        self.assertEqual(found["cases"], [1])
        done, found = self.run_script("python")
        self.assertEqual(set(found["asked"]["steps"]), {"build", "python"})
        self.assertNotIn("cases", found)

    def test_what_is_missing_is_said(self):
        (self.folder / "bin/compute-sanitizer").unlink()
        done, found = self.run_script("sanitize")
        self.assertEqual(done.returncode, 0)
        self.assertIn("sanitize: skipped, there is no compute-sanitizer", done.stdout)
        self.script("bin/nvidia-smi", "exit 1")
        done, _ = self.run_script()
        self.assertEqual((done.returncode, done.stdout), (0, "skipped: nvidia-smi finds no GPU on this machine\n"))
        done, _ = self.run_script("nonsense")
        self.assertEqual(done.returncode, 2)
        self.assertIn("sanitize", done.stdout)


if __name__ == "__main__":
    unittest.main()
