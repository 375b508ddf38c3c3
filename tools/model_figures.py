#!/usr/bin/env python3
"""The pictures and figures of docs/models.md, from the real weights of MiniLM and SmolLM2.

    tools/model_figures.py [--output docs/images]

Writes models_heads.svg (what every head looks at) and models_ablation.svg (what the loss is without some of them), and prints the
figures. The weights are those of the tests (python/tests/hf/real.py), downloaded once. Two minutes on two cores.
"""
import argparse
import pathlib
import sys

import torch

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "python" / "tests" / "hf"))
import real  # noqa: E402

import attend  # noqa: E402
import attend.hf  # noqa: E402

TEXT = (
    "A lighthouse keeper writes a letter every evening. The letter goes into a bottle, the bottle goes into the sea, and the sea "
    "carries it wherever it likes. One morning a boy finds such a bottle on the beach. He reads the letter aloud to his sister, who "
    "does not believe a word of it. There is no lighthouse on this coast, she says, and nobody has written letters for years. But in "
    "the evening, when the fog comes in, both of them see a light turning slowly, far out over the water."
)
REPEATED = 48  # tokens drawn at random, twice: only a look at the first time tells the second
GROUP = 5  # heads that are taken out together


def scores(model, inputs, special=None):
    """{score: [layer][head]} of one forward pass."""
    ids = inputs["input_ids"][0]
    with torch.no_grad(), attend.hf.capture(model, what="stats", inspect={"tokens": ids.numpy(), "key_mass": True}) as run:
        model(**inputs)
    stats = [run[layer].stats for layer in run.layers]
    found = {name: [[getattr(head, name) for head in of.heads] for of in stats] for name in ("previous", "first", "induction")}
    if special is not None:
        at = (ids == special).nonzero()[-1].item()
        found["sep"] = [(torch.as_tensor(of.key_mass)[0, :, at] / len(ids)).tolist() for of in stats]
    return found


def best(table, count):
    """The (layer, head) of the largest scores."""
    places = [(layer, head) for layer, row in enumerate(table) for head in range(len(row))]
    return sorted(places, key=lambda place: -table[place[0]][place[1]])[:count]


def loss_of(model, ids, begin=1):
    """Mean cross-entropy, in nats, of the tokens from `begin` on."""
    with torch.no_grad():
        logits = model(input_ids=ids, use_cache=False).logits[0, begin - 1 : -1]
    return torch.nn.functional.cross_entropy(logits, ids[0, begin:]).item()


def losses(model, text_ids, twice):
    """(of the text, of the second half of what comes twice)"""
    return loss_of(model, text_ids), loss_of(model, twice, REPEATED + 1)


def ablated(model, places, text_ids, twice):
    with attend.hf.edit(model, {place: attend.zero for place in places}):
        return losses(model, text_ids, twice)


def embedding(model, inputs):
    with torch.no_grad():
        return torch.nn.functional.normalize(model(**inputs).last_hidden_state.mean(1), dim=1)[0]


# ---- SVG -----------------------------------------------------------------------------------------

HEAD = ('<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w} {h}" width="{w}" height="{h}" font-family="sans-serif" font-size="11">'
        '<rect width="{w}" height="{h}" fill="#fff"/>')


def colour(x):
    """White to dark blue; lightness says all."""
    x = min(max(x, 0.0), 1.0) ** 0.5
    return "#" + "".join(f"{round(a + (b - a) * x):02x}" for a, b in ((255, 8), (255, 48), (255, 107)))


def grid(table, x, y, cell, title):
    """Layers downwards, heads to the right; the largest is written beside."""
    parts = [f'<text x="{x}" y="{y - 6}">{title}</text>']
    for layer, row in enumerate(table):
        for head, value in enumerate(row):
            parts.append(f'<rect x="{x + head * cell}" y="{y + layer * cell}" width="{cell}" height="{cell}" fill="{colour(value)}"/>')
    width, height = len(table[0]) * cell, len(table) * cell
    parts.append(f'<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="none" stroke="#999"/>')
    layer, head = best(table, 1)[0]
    parts.append(f'<text x="{x}" y="{y + height + 14}">most: layer {layer} head {head}, {table[layer][head]:.2f}</text>')
    return "".join(parts)


def heads_picture(minilm, smollm2):
    parts = [HEAD.format(w=720, h=510)]
    parts.append('<text x="20" y="20" font-weight="bold">MiniLM: 6 layers (downwards) x 12 heads. Mean weight on</text>')
    for n, (name, title) in enumerate((("previous", "the previous token"), ("first", "the first, [CLS]"), ("sep", "the last, [SEP]"))):
        parts.append(grid(minilm[name], 20 + 235 * n, 46, 12, title))
    parts.append('<text x="20" y="162" font-weight="bold">SmolLM2-135M: 30 layers x 9 heads. Mean weight on</text>')
    titles = (("previous", "the previous token"), ("first", "the first token"), ("induction", "what followed last time (induction)"))
    for n, (name, title) in enumerate(titles):
        parts.append(grid(smollm2[name], 20 + 235 * n, 188, 10, title))
    return "".join(parts) + "</svg>\n"


def bars_picture(rows):
    """rows: (label, loss of the text, loss of the repetition)"""
    height = 40 + 34 * len(rows)
    parts = [HEAD.format(w=720, h=height + 10)]
    most = max(max(row[1:]) for row in rows)
    parts.append('<text x="20" y="20" font-weight="bold">SmolLM2: loss in nats for each token, without some heads</text>')
    parts.append('<rect x="430" y="11" width="10" height="10" fill="#2471a3"/><text x="444" y="20">a text</text>'
                 '<rect x="500" y="11" width="10" height="10" fill="#e59866"/><text x="514" y="20">random tokens, the second time</text>')
    for n, (label, *values) in enumerate(rows):
        y = 40 + 34 * n
        parts.append(f'<text x="20" y="{y + 17}">{label}</text>')
        for place, (value, fill) in enumerate(zip(values, ("#2471a3", "#e59866"))):
            width = 370 * value / most
            parts.append(f'<rect x="290" y="{y + 13 * place}" width="{width:.1f}" height="11" fill="{fill}"/>'
                         f'<text x="{295 + width:.1f}" y="{y + 10 + 13 * place}" font-size="10">{value:.2f}</text>')
    return "".join(parts) + "</svg>\n"


# ---- The two models ------------------------------------------------------------------------------


def of_minilm():
    model, tokenizer = real.minilm()
    model.set_attn_implementation("attend")
    inputs = tokenizer(TEXT, return_tensors="pt")
    found = scores(model, inputs, tokenizer.sep_token_id)
    whole = embedding(model, inputs)
    print(f"MiniLM, {inputs['input_ids'].size(1)} tokens")
    for name in ("previous", "first", "sep"):
        places = best(found[name], GROUP)
        with attend.hf.edit(model, {place: attend.zero for place in places}):
            change = 1 - float(whole @ embedding(model, inputs))
        told = ", ".join(f"{layer}.{head} {found[name][layer][head]:.2f}" for layer, head in places)
        print(f"  {name}: {told}; without these the embedding's cosine is {1 - change:.3f}")
    return found


def of_smollm2():
    model, tokenizer = real.smollm2()
    model.set_attn_implementation("attend")
    text_ids = tokenizer(TEXT, return_tensors="pt").input_ids
    drawn = torch.randint(1000, 20000, (1, REPEATED), generator=torch.Generator().manual_seed(1))
    twice = torch.cat([drawn, drawn], 1)
    found = scores(model, {"input_ids": text_ids})
    found["induction"] = scores(model, {"input_ids": twice})["induction"]
    plain = losses(model, text_ids, twice)
    rows = [("all heads", *plain)]
    print(f"SmolLM2, a text of {text_ids.size(1)} tokens: loss {plain[0]:.3f}; {REPEATED} tokens a second time: {plain[1]:.3f}")
    groups = {"previous": "previous-token heads", "first": "first-token heads", "induction": "induction heads"}
    for name, title in groups.items():
        places = best(found[name], GROUP)
        for chosen, label in ((places, f"without the {GROUP} strongest {title}"), (places[:1], f"without layer {places[0][0]} head {places[0][1]} alone")):
            rows.append((label, *ablated(model, chosen, text_ids, twice)))
            told = ", ".join(f"{layer}.{head} {found[name][layer][head]:.2f}" for layer, head in chosen)
            print(f"  {label} ({told}): {rows[-1][1]:.3f}, {rows[-1][2]:.3f}")
    others = torch.randperm(270, generator=torch.Generator().manual_seed(2))[:GROUP].tolist()
    chosen = [divmod(n, 9) for n in others]
    rows.append((f"without {GROUP} heads drawn at random", *ablated(model, chosen, text_ids, twice)))
    print(f"  {rows[-1][0]} ({', '.join(f'{a}.{b}' for a, b in chosen)}): {rows[-1][1]:.3f}, {rows[-1][2]:.3f}")
    return found, rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "docs" / "images")
    folder = parser.parse_args().output
    attend.hf.register()
    minilm = of_minilm()
    smollm2, rows = of_smollm2()
    (folder / "models_heads.svg").write_text(heads_picture(minilm, smollm2))
    (folder / "models_ablation.svg").write_text(bars_picture(rows))
    print(f"wrote {folder / 'models_heads.svg'}, {folder / 'models_ablation.svg'}")


if __name__ == "__main__":
    main()
