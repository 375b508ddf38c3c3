"""Are tokens shown as a reader knows them?"""
import words

from attend.hf.tokens import texts_of


def test_bytes_of_gpt2():
    tokenizer = words.byte_level()
    ids = [*tokenizer(" the\nthe").input_ids, *tokenizer.convert_tokens_to_ids(["â", "Ĥ", "¬", "<|end|>"])]
    assert texts_of(tokenizer, ids) == [" the", "\n", "t", "he", "\\xe2", "\\x82", "\\xac", "<|end|>"]


def test_sentence_piece():
    tokenizer = words.sentence_piece()
    ids = [*tokenizer("the the").input_ids, *tokenizer.convert_tokens_to_ids(["s", "<0x0A>", "▁▁", "</s>"])]
    assert texts_of(tokenizer, ids) == [" the", " the", "s", "\n", "  ", "</s>"]


def test_word_piece():
    tokenizer = words.word_piece()
    assert texts_of(tokenizer, tokenizer("tokenizations.").input_ids) == ["[CLS]", " token", "ization", "s", " .", "[SEP]"]
    assert texts_of(tokenizer, [7]) == [" ##"]


def test_words_without_marks():
    tokenizer = words.word_level()
    assert texts_of(tokenizer, [1, 5, 6, 36]) == ["<s>", "w5", "w6", "</s>"]


def test_a_token_that_the_vocabulary_does_not_have():
    assert texts_of(words.word_level(), [5, 900]) == ["w5", "None"]


def test_a_tokenizer_that_does_not_tell_its_vocabulary():
    class Tokenizer:
        def convert_ids_to_tokens(self, ids):
            return [f"t{n}" for n in ids]

    assert texts_of(Tokenizer(), [5, 6]) == ["t5", "t6"]
