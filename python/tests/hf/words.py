"""Tokenizers made here, of few words, with the marks of each kind."""
import transformers as t
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from tiny import WORDS


def word_level():
    """A word is a token, w2 to w36; beginning and end as the tiny models have them."""
    names = ["<pad>", "<s>", *(f"w{n}" for n in range(2, WORDS - 1)), "</s>"]
    of = Tokenizer(models.WordLevel({name: n for n, name in enumerate(names)}, unk_token="w2"))
    of.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return t.PreTrainedTokenizerFast(tokenizer_object=of, pad_token="<pad>", bos_token="<s>", eos_token="</s>")


def byte_level():
    words = ["Ġ", "t", "h", "e", "Ċ", "â", "Ĥ", "¬", "Ġt", "he", "Ġthe", "<|end|>"]
    of = Tokenizer(models.BPE({x: n for n, x in enumerate(words)}, [("Ġ", "t"), ("h", "e"), ("Ġt", "he")]))
    of.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return t.PreTrainedTokenizerFast(tokenizer_object=of, eos_token="<|end|>")


def sentence_piece():
    words = [("<unk>", 0.0), ("</s>", 0.0), ("▁the", -1.0), ("▁", -2.0), ("n", -2.0), ("s", -2.0), ("<0x0A>", -3.0), ("▁▁", -3.0)]
    of = Tokenizer(models.Unigram(words, 0))
    of.pre_tokenizer = pre_tokenizers.Metaspace()
    return t.PreTrainedTokenizerFast(tokenizer_object=of, eos_token="</s>", unk_token="<unk>")


def word_piece():
    words = ["[UNK]", "[CLS]", "[SEP]", "token", "##ization", "##s", ".", "##"]
    of = Tokenizer(models.WordPiece({x: n for n, x in enumerate(words)}, unk_token="[UNK]"))
    of.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    of.decoder = decoders.WordPiece()
    of.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    return t.PreTrainedTokenizerFast(tokenizer_object=of, cls_token="[CLS]", sep_token="[SEP]", unk_token="[UNK]")


def utf8():
    """Bytes are tokens, with 3 in front of them."""
    return t.ByT5Tokenizer()
