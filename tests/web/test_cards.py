"""Cards of the grid change only what they say anew: what they show does not depend on what they showed before."""

from test_rows import model

# Everything that a card says and shows.
LOOKS = """() => [...document.querySelectorAll(".thumb")].map((card) => {
  const canvas = card.querySelector("canvas"), { width, height } = canvas, { style } = card.querySelector(".bar");
  return [card.title, card.getAttribute("aria-label"), card.getAttribute("aria-pressed"), card.tabIndex, card.className,
    card.textContent, style.width, style.backgroundColor, width, height,
    [...canvas.getContext("2d").getImageData(0, 0, width, height).data].join()]; })"""


def test_cards_are_as_on_a_page_just_opened_whatever_was_chosen_before(show):
    """Cells that are known, bounded, hidden; a query, several; keys; another head; filters."""
    tab, seen = show(model()[0]), []
    choices = [
        ("cell=30,11&chosen=30", {"cell": [30, 11], "chosen": [30]}),
        ("cell=5,30&chosen=5", {"cell": [5, 30], "chosen": [5]}),
        ("cell=39,2&chosen=39&layer=2&head=3", {"cell": [39, 2], "chosen": [39], "layer": 2, "head": 3}),
        ("chosen=39&over=mean", {"cell": None, "chosen": [39], "layer": 0, "head": 0, "over": "mean"}),
        ("chosen=39,7&sort=entropy", {"chosen": [39, 7], "over": "none", "sort": "entropy"}),
        ("reverse=1&chosen=7", {"reverse": True, "chosen": [7], "sort": "order"}),
        ("reverse=1&chosen=7&least=0.1", {"least": 0.1}),
        ("reverse=1&chosen=39&language=zh", {"chosen": [39], "least": 0, "language": "zh"}),
        ("cell=30,11&chosen=30&bend=linear",
         {"cell": [30, 11], "chosen": [30], "reverse": False, "language": "en", "bend": "linear"}),
    ]
    for _, changes in choices:
        tab.choose(**changes)
        seen.append(tab.evaluate(LOOKS))
    assert all(len(cards) == 18 for cards in seen)
    for (address, _), cards in zip(choices, seen):
        assert tab.go("#" + address).evaluate(LOOKS) == cards, address
