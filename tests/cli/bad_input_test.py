#!/usr/bin/env python3
"""What the command says to input that it cannot take: one line, the right exit status, and no file
more than before. usage: bad_input_test.py PATH_OF_ATTEND"""
import os
import signal
import stat
import subprocess
import time
import unittest

import command
from command import CommandTest, Tensor, attend, numbers, save_safetensors


class Flags(CommandTest):
    def test_unknown_words_bring_near_ones(self):
        self.fails(2, "there is no command inof; did you mean info?", "inof")
        self.fails(2, "there is no command xyzzy; attend --help lists all", "xyzzy")
        self.fails(2, "there is no flag --cuasal; did you mean --causal?", "apply", "--cuasal")
        self.fails(2, "did you mean --save-lse?", "apply", "--save-les", "x")
        self.fails(2, "there is no flag --memory-lengths any more; it is called --cross-key-lengths now",
                   "apply", "--memory-lengths", "3")
        self.fails(2, "no flag --lr any more; it is called --learning-rate now", "train", "--lr=1")
        self.fails(2, "there is no flag --verison; did you mean --version?", "--verison")
        self.fails(2, "'x.npy' is not expected", "apply", "x.npy")
        self.fails(2, "there is no flag --zzzzzzzzz; attend apply --help lists all", "apply",
                   "--zzzzzzzzz=3")
        self.fails(2, "did you mean reference.forward?", "check", "--kernel", "refrence.forward")

    def test_values_that_are_none(self):
        self.fails(2, "--heads", "apply", "--heads", "x")
        self.fails(2, "--heads", "apply", "--heads", "0")
        self.fails(2, "--seed", "apply", "--seed", "-1")
        self.fails(2, "--type", "apply", "--type", "f8")
        self.fails(2, "--threads", "info", "--threads", "-1")
        self.fails(2, "--output", "apply", "--output")
        self.fails(2, "--tolerance", "check", "--tolerance", "2")
        self.fails(2, "cannot read the word 'colour=red'", "check", "--case", "colour=red")
        self.fails(2, "fish", "completion", "fish")
        self.fails(2, "'0x-5' is not a whole number", "apply", "--key-offset", "0x-5")
        self.fails(2, "'1e400' is not a finite number", "apply", "--scale", "1e400")

    def test_a_list_must_be_finite_in_its_type(self):
        bare = "apply", "--length", 2, "--d-k", 2
        for flag in "--alibi", "--sinks":
            for kind in "f32", "bf16", "f16":
                self.fails(2, f"{flag}: 1e+39 is too large for f32, whose numbers lie between -3.4e38 and 3.4e38; with "
                           "--type f64 there are larger ones", *bare, "--type", kind, flag, "1e39")
            self.run_ok(*bare, "--type", "f64", flag, "1e39")
            self.run_ok(*bare, "--type", "f32", flag, "3e38")
        self.save("q.npy", numbers((1, 1, 2, 2), type="f4"))
        for name in "inspect", "view":
            self.fails(2, "--sinks: -1e+39 is too large", name, "--q", "q.npy", "--k", "q.npy", "--sinks=-1e39")
        self.fails(2, "--alibi: 1e+39 is too large", "explain", "q.npy", "q.npy", "q.npy", "--alibi", "1e39")

    def test_a_scale_may_be_larger_than_the_type(self):
        """Some kernel has room for it: no result is NaN."""
        for flag in "--scale", "--softcap":
            done = self.run_json("apply", "--length", 2, "--d-k", 2, "--type", "f32", flag, "1e39")
            self.assertEqual(done["output"]["not_finite"], 0)

    def test_a_number_too_small_is_the_nearest(self):
        bare = "apply", "--length", 2, "--d-k", 2, "--output", "y.npy", "--scale"
        self.run_ok(*bare, "0")
        right = (self.folder / "y.npy").read_bytes()
        self.run_ok(*bare, "1e-400")
        self.assertEqual((self.folder / "y.npy").read_bytes(), right)

    def test_a_part_of_the_keys_needs_the_position_of_its_queries(self):
        self.save("q.npy", numbers((1, 1, 2, 2)))
        for name in "inspect", "view":
            self.fails(2, "key_offset is 256 and query_offset is not given; a part of the keys needs both, the "
                       "positions of query 0 and of key 0", name, "--q", "q.npy", "--k", "q.npy", "--key-offset", 256)
        self.fails(2, "it must lie between -2^62 and 2^62", "apply", "--length", 2, "--d-k", 2, "--query-offset", 0,
                   "--key-offset", -2**62)

    def test_heads_that_do_not_divide(self):
        text = "model_dim 512 is not divisible by heads 7; give d_k, or one of 1 2 4 8 16"
        self.fails(2, text, "apply", "--model-dim", 512, "--heads", 7, "--length", 2)
        self.fails(2, text, "info", "--model-dim", 512, "--heads", 7)

    def test_flags_that_do_not_go_together(self):
        self.fails(2, "--q, --k and --v come together", "apply", "--q", "q.npy")
        self.fails(2, "nothing to attend", "apply")
        self.fails(2, "--hidden-dim is for a block", "apply", "--model-dim", 8, "--hidden-dim", 8)
        self.fails(2, "--rotary is for a layer", "apply", "--length", 2, "--d-k", 2, "--rotary", "halves")
        self.fails(2, "--q is for bare attention", "apply", "--q", "q.npy", "--model-dim", 8)
        self.fails(2, "--model-dim is given by the weights", "apply", "--weights", "l.safetensors",
                   "--model-dim", 8)
        self.fails(2, "--heads is given by the block's file", "apply", "--weights", "l.safetensors",
                   "--block", "--heads", 8)
        self.fails(2, "--prefix needs --weights", "apply", "--prefix", "a.", "--model-dim", 8)
        self.fails(2, "give --input, or --length", "apply", "--model-dim", 8)
        self.fails(2, "--heads requires --model-dim", "info", "--heads", 8)
        self.fails(2, "64 bits", "info", "--model-dim", 2**40, "--length", 2**40)
        self.fails(2, "--save-layer is for a layer", "apply", "--length", 2, "--d-k", 2, "--save-layer",
                   "l.safetensors")

    def test_flags_that_would_change_nothing(self):
        bare = ("apply", "--length", 2, "--d-k", 2)
        layer = ("apply", "--model-dim", 8, "--length", 2)
        block = ("apply", "--block", "--model-dim", 8, "--length", 2)
        self.fails(2, "--rotary-base needs --rotary", *layer, "--rotary-base", 100)
        self.fails(2, "--rotary-dim needs --rotary", *layer, "--rotary-dim", 2)
        self.fails(2, "--score-stage needs --save-scores", *bare, "--score-stage", "raw")
        self.fails(2, "--bias-before-softcap needs --softcap", *bare, "--bias-before-softcap")
        self.fails(2, "--dropout-offset needs --dropout", *bare, "--dropout-offset", 2)
        self.fails(2, "--dropout-origin needs --dropout", *bare, "--dropout-origin", "0,0,0,0,1")
        self.fails(2, "--activation needs --hidden-dim", *block, "--activation", "relu")
        self.fails(2, "--key-dim is for a layer", *bare, "--key-dim", 8)
        self.fails(2, "--value-dim is for a layer", *bare, "--value-dim", 8)
        for flag, value in (("--memory-dim", 4), ("--cross-mask", "m.npy"), ("--cross-key-lengths", "1"),
                            ("--key-length", 3)):
            self.fails(2, f"{flag} needs --cross or --memory", *block, flag, value)
        for flag in ("--length", "--batch", "--key-length"):
            for given in ("--input", "--query", "--memory", "--key", "--value"):
                self.fails(2, f"{flag} is for inputs that are drawn", "apply", given, "x.npy", flag, 2)
        for flag in ("--length", "--batch", "--key-length", "--heads", "--key-heads", "--d-k", "--d-v"):
            self.fails(2, f"{flag} is given by the inputs", "apply", "--q", "q.npy", flag, 2)
        self.fails(2, "--causal requires --model-dim", "info", "--causal")
        self.fails(2, "--type requires --model-dim", "info", "--type", "f32")
        self.fails(2, "--no-projection-bias requires --model-dim", "info", "--no-projection-bias")
        self.fails(2, "--no-output-projection requires --model-dim", "info", "--no-output-projection")
        self.fails(2, "--no-output-projection is given by the block's file", "apply", "--block",
                   "--weights", "b.safetensors", "--no-output-projection")

    def test_no_command_shows_help(self):
        done = attend()
        self.assertEqual((done.status, done.out), (2, ""))
        self.assertIn("Commands:", done.err)


class Files(CommandTest):
    def setUp(self):
        super().setUp()
        self.save("q.npy", numbers((1, 2, 3, 4), 1)), self.save("k.npy", numbers((1, 2, 5, 4), 2))
        self.save("v.npy", numbers((1, 2, 5, 4), 3)), self.save("x.npy", numbers((2, 3, 8), 4))
        self.bare = ["apply", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy"]

    def test_missing_or_malformed(self):
        self.fails(2, "no.npy: cannot be opened: No such file", "apply", "--q", "no.npy", "--k",
                   "k.npy", "--v", "v.npy")
        (self.folder / "bad.npy").write_bytes(b"\x93NUMPY and then nothing")
        self.fails(2, "bad.npy", *self.bare, "--mask", "bad.npy")
        (self.folder / "bad.safetensors").write_bytes(b"\xff" * 40)
        self.fails(2, "bad.safetensors", "apply", "--weights", "bad.safetensors", "--input", "x.npy")
        self.fails(2, "'x.txt' must end in .npy or .safetensors", "apply", "--input", "x.txt")
        self.fails(2, "is a folder", "apply", "--weights", ".", "--input", "x.npy")

    def test_wrong_shapes(self):
        self.fails(2, "k has 6 heads", "apply", "--q", "q.npy", "--k",
                   self.save("k6.npy", numbers((1, 6, 5, 4), 2)), "--v",
                   self.save("v6.npy", numbers((1, 6, 5, 4), 2)))
        self.fails(2, "[1, 2, 3]", "apply", "--q", self.save("flat.npy", numbers((1, 2, 3), 1)), "--k",
                   "k.npy", "--v", "v.npy")
        self.fails(2, "model_dim", "apply", "--model-dim", 6, "--input", "x.npy")
        self.fails(2, "key_lengths", *self.bare, "--key-lengths", "1,2,3")
        save_safetensors(self.folder / "l.safetensors", {
            "q.weight": numbers((8, 8), 1), "k.weight": numbers((8, 7), 1),
            "v.weight": numbers((8, 8), 1), "o.weight": numbers((8, 9), 1)})
        err = self.fails(2, "[out, in]", "apply", "--weights", "l.safetensors", "--heads", 2, "--input",
                         "x.npy")
        self.assertIn("[8, 9]", err)

    def test_wrong_types(self):
        self.fails(2, "k is f32, q is f64; --type f64 converts", "apply", "--q", "q.npy", "--k",
                   self.save("k4.npy", numbers((1, 2, 5, 4), 2, "f4")), "--v", "v.npy")
        self.fails(2, "input is i64", "apply", "--input",
                   self.save("i.npy", Tensor((1, 2), [1, 2], "i8")), "--heads", 1)
        self.fails(2, "bias", *self.bare, "--mask", self.save("m.npy", numbers((3, 5), 1)))
        self.fails(2, ".npy has no bf16", *self.bare, "--type", "bf16", "--output", "y.npy")

    def test_unknown_names_list_the_known(self):
        save_safetensors(self.folder / "two.safetensors", {"one": numbers((2, 2)), "two": numbers((2, 2))})
        err = self.fails(2, "there is no tensor 'three'", "apply", "--q", "two.safetensors:three", "--k",
                         "k.npy", "--v", "v.npy")
        self.assertIn("'one', 'two'", err)
        self.fails(2, "say which: two.safetensors:NAME with one of one two", "apply", "--q",
                   "two.safetensors", "--k", "k.npy", "--v", "v.npy")
        err = self.fails(2, "two.safetensors", "apply", "--weights", "two.safetensors", "--heads", 1,
                         "--input", "x.npy")
        self.assertIn("there are: one two", err)

    def test_outputs_all_or_none(self):
        self.fails(2, "cannot be written", *self.bare, "--output", "no_folder/y.npy")
        self.fails(2, "is to be written twice", *self.bare, "--output", "y.npy", "--save-lse", "y.npy")
        self.fails(2, "is to be written twice", *self.bare, "--output", "y.npy", "--save-lse", "./y.npy")
        self.fails(2, "is to be written twice", *self.bare, "--output", "y.npy", "--save-lse",
                   self.folder / "y.npy")
        self.fails(2, "must end in .safetensors", *self.bare, "--trace", "t.npy")
        self.fails(2, "it is a folder", *self.bare, "--output", "y.npy", "--save-lse",
                   self.subfolder("lse.npy"))
        self.fails(2, "cannot be written", *self.bare, "--output", "y.npy", "--save-lse",
                   "l" * 300 + ".npy")
        if os.path.exists("/dev/full"):
            self.fails(2, "no regular file", *self.bare, "--output", self.link("full.npy", "/dev/full"))

    def subfolder(self, name):
        (self.folder / name).mkdir()
        return name

    def link(self, name, to):
        (self.folder / name).symlink_to(to)
        return name

    def test_old_output_stays_until_the_new_one_is_whole(self):
        (self.folder / "y.npy").write_text("old")
        self.fails(2, "cannot be written", *self.bare, "--output", "y.npy", "--save-lse", "no/l.npy")
        self.assertEqual((self.folder / "y.npy").read_text(), "old")
        os.chmod(self.folder / "y.npy", 0o640)
        self.link("to_y.npy", "y.npy")
        self.run_ok(*self.bare, "--output", "to_y.npy")
        self.assertTrue((self.folder / "to_y.npy").is_symlink())
        self.assertEqual(self.load("y.npy").shape, (1, 2, 3, 4))
        self.assertEqual(stat.S_IMODE(os.stat(self.folder / "y.npy").st_mode), 0o640)

    # Three files, of which the first takes a while to write.
    LONG = ["apply", "--length", 500_000, "--key-length", 1, "--d-k", 1, "--d-v", 16, "--output", "y.npy",
            "--save-lse", "lse.npy", "--save-weights", "w.npy"]

    def while_writing(self, act):
        """Runs the command, stops it where the first of its files is being written, calls act(process), and
        lets it go on; all again, where the command was faster than this."""
        kept = {path: path.read_bytes() for path in self.folder.iterdir() if path.is_file()}
        while True:
            process = subprocess.Popen([command.ATTEND, *map(str, self.LONG)], cwd=self.folder, text=True,
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            while process.poll() is None and not self.beside():
                time.sleep(0.001)
            process.send_signal(signal.SIGSTOP)
            if process.returncode is None and self.stopped(process) and self.first_is_written():
                break
            process.send_signal(signal.SIGCONT)
            process.communicate()
            for path in self.folder.iterdir():
                path.unlink()
            for path, data in kept.items():
                path.write_bytes(data)
        act(process)
        process.send_signal(signal.SIGCONT)
        err = process.communicate()[1]
        return process.returncode, err

    def stopped(self, process):
        """Waits until it is, or has ended."""
        end = os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        return end.si_code == os.CLD_STOPPED

    def first_is_written(self):
        """And not the last, when the others are in their places."""
        return len(self.beside()) == 1 and not (self.folder / "lse.npy").exists()

    def beside(self):
        return [path.name for path in self.folder.iterdir() if path.name.startswith(".attend-")]

    def test_a_file_that_finds_no_place_takes_the_others_back(self):
        (self.folder / "y.npy").write_text("old")
        status, err = self.while_writing(lambda process: (self.folder / "lse.npy").mkdir())
        self.assertEqual(status, 2, err)
        self.assertIn("lse.npy: cannot be written", err)
        self.assertEqual((self.folder / "y.npy").read_text(), "old")
        self.assertFalse((self.folder / "w.npy").exists())
        self.assertEqual(self.beside(), [])
        os.rename(self.folder / "y.npy", self.folder / "w.npy")   # now the second is the older one
        (self.folder / "lse.npy").rmdir()
        status, err = self.while_writing(lambda process: (self.folder / "lse.npy").mkdir())
        self.assertEqual(status, 2, err)
        self.assertEqual((self.folder / "w.npy").read_text(), "old")
        self.assertFalse((self.folder / "y.npy").exists())
        self.assertEqual(self.beside(), [])

    def test_an_interrupt_leaves_no_file_half_made(self):
        for end in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            (self.folder / "y.npy").write_text("old")
            status, err = self.while_writing(lambda process: process.send_signal(end))
            self.assertEqual(status, -end, err)
            self.assertEqual(self.beside(), [])
            self.assertEqual((self.folder / "y.npy").read_bytes(), b"old")
            for name in ("lse.npy", "w.npy"):
                self.assertFalse((self.folder / name).exists())

    @unittest.skipIf(os.geteuid() == 0, "root may write everywhere")
    def test_unwritable_folder(self):
        locked = self.folder / "locked"
        locked.mkdir(mode=0o500)
        self.fails(2, "cannot be written", *self.bare, "--output", "locked/y.npy")

    def test_full_or_closed_stdout_is_noticed(self):
        calls = (["info"], ["--help"], ["--version"], ["apply", "--help"], ["man"], ["completion", "bash"],
                 ["info", "--json"], ["bench", "--list"], ["explain", "single-head"],
                 ["info", "--model-dim", "8"])
        for words in calls:
            for how in (">/dev/full", ">&-"):
                if "full" in how and not os.path.exists("/dev/full"):
                    continue
                done = subprocess.run(["sh", "-c", f'"$@" {how}', "sh", command.ATTEND, *words],
                                      stderr=subprocess.PIPE, text=True)
                self.assertEqual(done.returncode, 2, (words, how))
                self.assertRegex(done.stderr, r"\Aattend( \w+)?: standard output cannot be written\n\Z")

    def test_no_output_takes_the_place_of_a_closed_stdout(self):
        """Or what is printed would be written into the file."""
        self.run_ok(*self.bare, "--output", "right.npy")
        done = subprocess.run(["sh", "-c", '"$@" <&- >&- 2>&-', "sh", command.ATTEND, *self.bare, "--output",
                               "y.npy"], cwd=self.folder)
        self.assertEqual(done.returncode, 2)
        self.assertEqual(*((self.folder / name).read_bytes() for name in ("y.npy", "right.npy")))

    def test_a_limit_on_the_size_of_files_is_an_error(self):
        """SIGXFSZ would end the command and leave what it had written so far."""
        self.fails(2, "y.npy: cannot be written: File too large", *self.bare, "--output", "y.npy",
                   prefix=("sh", "-c", 'ulimit -f 0; exec "$@"', "sh"))

    def test_a_link_stays_a_link(self):
        """One that leads nowhere yet gets its file, through others and in other folders too."""
        self.subfolder("data")
        self.link("nowhere.npy", "data/y.npy"), self.link("twice.npy", "nowhere.npy")
        self.run_ok(*self.bare, "--output", "twice.npy")
        self.assertTrue(all((self.folder / name).is_symlink() for name in ("nowhere.npy", "twice.npy")))
        self.assertEqual(self.load("data/y.npy").shape, (1, 2, 3, 4))
        self.fails(2, "is to be written twice", *self.bare, "--output", "twice.npy", "--save-lse", "data/y.npy")
        self.fails(2, "cannot be written: No such file", *self.bare, "--output", self.link("lost.npy", "no/y.npy"))
        self.fails(2, "Too many levels", *self.bare, "--output", self.link("loop.npy", "loop.npy"))
        self.link("c", "state"), self.link("p.svg", "plot")
        self.run_ok("train", "--steps", 1, "--model-dim", 4, "--heads", 1, "--batch", 1, "--checkpoint", "c", "--plot",
                    "p.svg")
        self.assertTrue((self.folder / "c").is_symlink() and (self.folder / "state").is_file())
        self.assertTrue((self.folder / "p.svg").is_symlink() and (self.folder / "plot").is_file())


class Memory(CommandTest):
    def test_no_memory_is_3(self):
        self.fails(3, "no memory", "apply", "--length", 10**6, "--d-k", 4, "--save-weights", "w.npy",
                   prefix=("sh", "-c", 'ulimit -v 4000000; exec "$@"', "sh"))


    def test_a_small_stack_is_enough_for_what_is_small(self):
        done = attend("--version", prefix=("sh", "-c", 'ulimit -s 900; exec "$@"', "sh"))
        self.assertEqual((done.status, done.err), (0, ""))


if __name__ == "__main__":
    command.main()
