"""The files of web/ themselves: words, modules, and the JSON that is written between them."""

import json
import re

from page import Blobs, WEB, page_of


def words(file):
    """{ key: sentence } of a language."""
    text = (WEB / file).read_text()
    pairs = re.findall(r'^  (\w+):\s+"((?:[^"\\]|\\.)+)",?$', text, re.M)
    assert len(pairs) == len(dict(pairs)) == len(re.findall(r"^  \w+:", text, re.M))
    return dict(pairs)


def test_every_sentence_is_there_in_both_languages_and_none_is_missing():
    english, chinese, used = words("words_en.js"), words("words_zh.js"), set()
    assert list(english) == list(chinese) and len(english) > 150
    for key, sentence in english.items():
        assert set(re.findall(r"\{\w+\}", sentence)) >= set(re.findall(r"\{\w+\}", chinese[key])), key
    known = set(english)
    for file in WEB.glob("*.js"):
        used |= set(re.findall(r'\bsay(?:With)?\(\s*"(\w+)"', file.read_text()))
    assert used <= known
    sources = "".join(file.read_text() for file in WEB.glob("*.js") if not file.name.startswith("words_"))
    families = ("hidden_", "legend_", "level_", "metric_", "label_", "key_", "over_", "goto_no_", "asked_")
    unused = [
        key
        for key in known - used
        if f'"{key}"' not in sources and not key.startswith(families) and not re.search(r"_word(_1)?$", key)
    ]
    assert unused == []


def test_the_modules_fit_together():
    """Names are unique, imports exist, the order holds every file: they end in one script."""
    names, order = {}, (WEB / "modules.txt").read_text().split()
    assert sorted(order) == sorted(file.name for file in WEB.glob("*.js")) and order[-1] == "main.js"
    exported = {}
    for name in order:
        text = (WEB / name).read_text()
        assert "</script" not in text and "<!--" not in text
        exported[name] = set(re.findall(r"^export (?:async )?(?:function|const|class|let) (\w+)", text, re.M))
        for line in re.findall(r"^(?:export )?(?:async )?(?:function|const|class|let) (.+)", text, re.M):
            for top in re.findall(r"(?:^|, )(\w+)(?= =|\(| \{| extends|;)", line.split("=>")[0])[:1]:
                assert top not in names, f"{top} in {name} and {names.get(top)}"
                names[top] = name
    for name in order:
        text = (WEB / name).read_text()
        for words, source in re.findall(r'^import \{(.*)\} from "\./(.*)";$', text, re.M):
            assert set(words.split(", ")) <= exported[source], (name, source)
            for word in words.split(", "):
                assert len(re.findall(rf"\b{word}\b", text)) > 1, f"{name} imports {word} for nothing"
        assert len(re.findall(r"^import", text, re.M)) == len(
            re.findall(r'^import \{.*\} from "\./.*";$', text, re.M)
        )


def test_json_of_the_page_has_no_letter_that_could_end_it():
    html = page_of([{"name": "</script><!--\u2028&", "layers": []}], Blobs(), title="<b>&\"'")
    data = re.search(r'id="data">(.*?)</script>', html, re.S)[1]
    assert (
        not set("<>&\u2028\u2029") & set(data)
        and json.loads(data)["runs"][0]["name"] == "</script><!--\u2028&"
    )
    assert "<title>&lt;b&gt;" in html
