"""The table, the curves, and the page: whole, without requests, every link inside it."""

import re
from html.parser import HTMLParser
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from demo import charts, measure, page, runs, table

SETTINGS = runs.Settings(neurons=5, batch=6, window=4, epochs=2)
ROWS = [
    table.Row("d_rtrl", (0.52, 0.975), 12.3, (2**20, 2**20), measure.Cosine(0.99, 0.9), measure.Cosine(0.98, 0.8)),
    table.Row("BPTT", (0.6, 0.985), 2.0, (2**21, 2**24), measure.Cosine(1.0, 1.0), measure.Cosine(1.0, 1.0)),
]


def test_table_lines_up():
    lines = table.text(ROWS, 120).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert lines[0].split("  ")[0] == "method" and "memory, 960 steps" in lines[0]
    assert " ".join(lines[1].split()) == "d_rtrl 97.5 % 12 s 1.0 MiB 1.0 MiB 0.990 (0.900) 0.980 (0.800)"


def test_curves_hold_every_value_inside_the_picture():
    drawn = charts.curves({"a<b": (0.31, 0.5, 1.0), "c": (0.9, 0.95, 0.96)}, "epoch", "accuracy", 'said "so"')
    root = ElementTree.fromstring(drawn)
    lines = [e.get("d") for e in root.iter() if e.get("class") == "line"]
    assert [len(re.findall("[ML]", d)) for d in lines] == [3, 3]
    heights = [float(p.split()[1]) for p in lines[0][1:].split("L")]
    # From the tenth below the least (30 %) to 100 %: 0.31 is 1/70 of the way up, 0.5 is 20/70.
    low, high = heights[0], heights[2]
    assert (low - heights[1]) / (low - high) == pytest.approx((0.5 - 0.31) / (1 - 0.31), abs=0.01)
    assert all(0 < h < 300 for h in heights)


def test_names_at_the_ends_do_not_overlap():
    found = charts._apart({"a": 100.0, "b": 101.0, "c": 99.0, "d": 255.0}, 16)
    assert sorted(found, key=lambda n: found[n]) == ["c", "a", "b", "d"]
    places = sorted(found.values())
    assert min(b - a for a, b in pairwise(places)) >= 16
    assert charts._apart({"a": 250.0, "b": 256.0}, 16) == {"a": 240.0, "b": 256.0}


class Seen(HTMLParser):
    def __init__(self):
        super().__init__()
        self.ids, self.links, self.sources, self.tags = [], [], [], []

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.tags.append(tag)
        self.ids += [found["id"]] if "id" in found else []
        self.links += [found["href"]] if "href" in found else []
        self.sources += [found["src"]] if "src" in found else []


def test_page_is_whole_and_asks_for_nothing(digits):
    learner = runs.method("d_rtrl", SETTINGS, digits).learner
    found = page.page(ROWS, learner.report, ("data:image/png;base64,AAAA", 7), SETTINGS, digits)
    seen = Seen()
    seen.feed(found)
    assert seen.tags.count("h1") == 1 and seen.tags.count("body") == 1 and seen.tags.count("footer") == 1
    assert len(set(seen.ids)) == len(seen.ids)
    assert {"results", "learning", "lengths", "word", "code", "graph", "parameters"} <= set(seen.ids)
    assert all(link.startswith("#") and link[1:] in seen.ids for link in seen.links)
    assert seen.sources == ["data:image/png;base64,AAAA"]
    assert "default-src 'none'; img-src data:;" in found
    assert "nobody &lt;b&gt;" in found and "97.5 %" in found and "def step(params" in found
