"""Outputs that would replace what the command reads, or that no file can hold, are refused, and no file changes."""
import os

import command
from command import CommandTest, numbers, save_safetensors

SMALL = ("train", "--steps", 1, "--model-dim", 4, "--heads", 1, "--batch", 1)


class Refused(CommandTest):
    def setUp(self):
        super().setUp()
        self.save("q.npy", numbers((1, 2, 3, 4), 1))
        self.save("m.npy", numbers((3, 3), 1))
        self.save("x.npy", numbers((1, 3, 8), 1))
        save_safetensors(self.folder / "heads.safetensors", {"q": numbers((1, 2, 3, 4)), "k": numbers((1, 2, 3, 4))})
        (self.folder / "text.html").write_text("ab" * 400)
        self.qkv = "q.npy", "q.npy", "q.npy"
        self.bare = "apply", "--q", "q.npy", "--k", "q.npy", "--v", "q.npy"
        self.run_ok("explain", "sentence", "--save-layer", "layer.safetensors", "--save-input", "words.npy")

    def refused(self, output, source, *arguments):
        before = {path.name: path.read_bytes() for path in self.folder.iterdir()}
        self.fails(2, f"{output} would replace the input {source}; give the output another name", *arguments)
        self.assertEqual({path.name: path.read_bytes() for path in self.folder.iterdir()}, before)

    def test_of_apply(self):
        for flag in "--output", "--save-weights", "--save-lse", "--save-scores":
            self.refused("q.npy", "q.npy", *self.bare, flag, "q.npy")
        self.refused("m.npy", "m.npy", *self.bare, "--bias", "m.npy", "--output", "m.npy")
        layer = "apply", "--weights", "layer.safetensors", "--input", "words.npy"
        self.refused("layer.safetensors", "layer.safetensors", *layer, "--output", "layer.safetensors:y")
        for flag in "--trace", "--save-layer":
            self.refused("layer.safetensors", "layer.safetensors", *layer, flag, "layer.safetensors")
        self.refused("heads.safetensors", "heads.safetensors", "apply", "--q", "heads.safetensors:q", "--k", "q.npy",
                     "--v", "q.npy", "--output", "heads.safetensors:y")

    def test_of_the_other_commands(self):
        self.refused("q.npy", "q.npy", "explain", *self.qkv, "--html", "q.npy")
        self.refused("layer.safetensors", "layer.safetensors", "explain", "layer.safetensors", "words.npy", "--html",
                     "layer.safetensors")
        self.refused("heads.safetensors", "heads.safetensors", "inspect", "heads.safetensors", "--output",
                     "heads.safetensors")
        self.refused("text.html", "text.html", "view", *self.qkv, "--tokens", "text.html", "--output", "text.html")
        for flag in "--plot", "--save", "--checkpoint":
            self.refused("text.html", "text.html", *SMALL, "--text", "text.html", flag, "text.html")

    def test_by_any_of_its_names(self):
        (self.folder / "link.npy").symlink_to("q.npy")
        os.link(self.folder / "q.npy", self.folder / "second.npy")
        for name in "./q.npy", self.folder / "q.npy", "link.npy", "second.npy":
            self.refused(name, "q.npy", *self.bare, "--output", name)

    def test_training_goes_on_in_its_own_file(self):
        self.run_ok(*SMALL, "--checkpoint", "c")
        self.refused("c", "c", "train", "--resume", "c", "--plot", "c")
        for flag in "--checkpoint", "--save":
            self.run_ok("train", "--resume", "c", "--steps", 2, flag, "c")

    def test_words_and_older_outputs_are_no_inputs(self):
        (self.folder / "single-head").write_text("a file of this name")
        self.run_ok("explain", "single-head", "--html", "single-head")
        for _ in range(2):
            self.run_ok(*self.bare, "--output", "y.npy")

    def test_no_tensor_is_called_as_the_metadata(self):
        self.fails(2, "y.safetensors:__metadata__: no tensor can be named __metadata__", *self.bare, "--output",
                   "y.safetensors:__metadata__")


if __name__ == "__main__":
    command.main()
