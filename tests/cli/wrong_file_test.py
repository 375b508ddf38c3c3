"""Somebody gives the command a file of another kind: it says what it found, and what to do instead."""
import command
from command import CommandTest, numbers, save_safetensors


class WrongFile(CommandTest):
    def setUp(self):
        super().setUp()
        self.run_ok("explain", "sentence", "--save-layer", "layer.safetensors", "--save-input", "x.npy")
        self.save("q.npy", numbers((1, 2, 3, 4)))

    def test_a_layer_where_heads_are_expected(self):
        for name in "view", "inspect":
            self.fails(2, "no tensors are named q and k, or PREFIX.q and PREFIX.k; a layer's weights come with its "
                       "input: --weights layer.safetensors --input x.npy", name, "layer.safetensors")
            self.fails(2, "a layer and its input are --weights layer.safetensors --input x.npy", name,
                       "layer.safetensors", "x.npy")
        self.fails(2, "layer.safetensors is no saved trace: it has no weights [batch, heads, queries, keys]; a layer "
                   "comes with its input: layer.safetensors x.npy", "explain", "layer.safetensors")
        self.run_ok("inspect", "--weights", "layer.safetensors", "--input", "x.npy")
        self.run_ok("explain", "layer.safetensors", "x.npy")

    def test_heads_where_a_trace_is_expected(self):
        heads = {name: numbers((1, 2, 3, 4)) for name in "qkv"}
        save_safetensors(self.folder / "heads.safetensors", heads)
        places = [f"heads.safetensors:{name}" for name in "qkv"]
        self.fails(2, f"is no saved trace: it has no weights [batch, heads, queries, keys]; its q, k and v are "
                   f"{' '.join(places)}", "explain", "heads.safetensors")
        self.run_ok("explain", *places)

    def test_other_tensors_get_no_hint(self):
        save_safetensors(self.folder / "other.safetensors", {"a": numbers((2, 2))})
        self.assertNotIn("weights come", self.fails(2, "no tensors are named q and k", "view", "other.safetensors"))
        self.assertTrue(self.fails(2, "no saved trace", "explain", "other.safetensors").endswith("keys]\n"))

    def test_a_file_without_tensors(self):
        save_safetensors(self.folder / "none.safetensors", {})
        self.fails(2, "none.safetensors holds no tensors", "apply", "--q", "none.safetensors", "--k", "q.npy", "--v",
                   "q.npy")

    def test_an_array_where_a_checkpoint_is_expected(self):
        self.fails(2, "x.npy is an npy file; --resume takes what --checkpoint wrote", "train", "--resume", "x.npy")

    def test_tokens_that_are_no_list_of_tokens(self):
        for text, expected in (('["a", ]', "tokens.json: is not JSON: it is wrong at byte 7; tokens are a list as in "
                                '["the", "cat"]'),
                               ("[1e999]", "tokens.json: holds a number that is too large"),
                               ("{}", 'tokens.json: is no JSON list of tokens, as in ["the", "cat"]')):
            (self.folder / "tokens.json").write_text(text)
            err = self.fails(2, expected, "inspect", "q.npy", "q.npy", "--tokens", "tokens.json")
            self.assertNotIn("json.exception", err)

    def test_explain_alone_says_what_there_is(self):
        self.fails(2, "subject is missing: single-head, two-heads, sentence, shapes; or files: q k v, a layer and its "
                   "input, a trace", "explain")


if __name__ == "__main__":
    command.main()
