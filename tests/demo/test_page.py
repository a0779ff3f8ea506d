"""The table, the curves, and the page: whole, without requests, every link inside it."""

import html
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

from demo import charts, measure, page, pictures, runs, stream, table

SETTINGS = runs.Settings(neurons=5, batch=6, window=4, epochs=2)
ROWS = [
    table.Row("d_rtrl", (0.52, 0.975), 12.3, (2**20, 2**20), measure.Cosine(0.99, 0.9), measure.Cosine(0.98, 0.8)),
    table.Row("BPTT", (0.6, 0.985), 2.0, (2**21, 2**24), measure.Cosine(1.0, 1.0), measure.Cosine(1.0, 1.0)),
]
HEARD = [
    stream.Heard(1, "d_rtrl", 50, 4000, (0.1, 0.5)),
    stream.Heard(16, "d_rtrl", 50, 250, (0.1, 0.2)),
    stream.Heard(1, "tbptt", 50, 4000, (0.1, 0.3)),
]
MEMORY = {"d_rtrl": [2e6] * 4, "BPTT": [1e6, 1e7, 1e8, 1e9]}


def test_table_lines_up():
    lines = table.text(ROWS, 120).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert lines[0].split("  ")[0] == "method" and "memory, 960 steps" in lines[0]
    assert " ".join(lines[1].split()) == "d_rtrl 97.5 % 0.990 (0.900) 0.980 (0.800) 12.3 s 1.0 MB 1.0 MB"


def test_curves_hold_every_value_inside_the_picture():
    drawn = charts.curves({"a<b": (0.31, 0.5, 1.0), "c": (0.9, 0.95, 0.96)}, "epoch", "accuracy", 'said "so"')
    wide, narrow = drawn.split("</svg>")[:2]
    assert 'class="chart wide"' in wide and 'class="chart narrow"' in narrow
    root = ElementTree.fromstring(wide + "</svg>")
    lines = [e.get("d") for e in root.iter() if e.get("class") == "line"]
    assert [len(re.findall("[ML]", d)) for d in lines] == [3, 3]
    heights = [float(p.split()[1]) for p in lines[0][1:].split("L")]
    # From the tenth below the least (30 %) to 100 %: 0.31 is 1/70 of the way up, 0.5 is 20/70.
    low, high = heights[0], heights[2]
    assert (low - heights[1]) / (low - high) == pytest.approx((0.5 - 0.31) / (1 - 0.31), abs=0.01)
    assert all(0 < h < charts.FRAMES[0].floor + 1 for h in heights)


def test_names_at_the_ends_do_not_overlap():
    found = charts._apart({"a": 100.0, "b": 101.0, "c": 99.0, "d": 255.0}, 16, 256)
    assert sorted(found, key=lambda n: found[n]) == ["c", "a", "b", "d"]
    places = sorted(found.values())
    assert min(b - a for a, b in pairwise(places)) >= 16
    assert charts._apart({"a": 250.0, "b": 256.0}, 16, 256) == {"a": 240.0, "b": 256.0}


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
    drawn = pictures.Drawn(*(f"data:image/png;base64,{4 * a}" for a in "ABCD"), 7)
    found = page.page(ROWS, learner.report, drawn, SETTINGS, digits, HEARD, MEMORY)
    assert "BPTT needs 500 times as much" in found
    seen = Seen()
    seen.feed(found)
    assert seen.tags.count("h1") == 1 and seen.tags.count("body") == 1 and seen.tags.count("footer") == 1
    assert len(set(seen.ids)) == len(seen.ids)
    assert {"results", "learning", "word", "code", "graph", "parameters"} <= set(seen.ids)
    assert all(link.startswith("#") and link[1:] in seen.ids for link in seen.links)
    assert seen.sources == ["data:image/png;base64,AAAA"]
    assert "default-src 'none'; img-src data:;" in found
    assert found.index("it recognises 50&nbsp;%") < found.index("97.5&nbsp;%")  # the stream before words one by one
    assert all(f'srcset="data:image/png;base64,{4 * a}"' in found for a in "BCD")
    assert "etrax explain demo/model.py:make" in found
    assert '<span class="word">def</span> step(params' in found
    assert "nobody &lt;b&gt;" in found and "97.5 %" in found


def test_coloured_code_is_the_code_itself():
    source = 'def f(x):  # "a" < 1\n    """Two\n    lines."""\n    return x + 1.5\n\n\ny = f"{2}<b>"'
    shown = page.coloured(source)
    assert '<span class="string">&quot;&quot;&quot;Two\n    lines.&quot;&quot;&quot;</span>' in shown
    assert html.unescape(re.sub(r"</?span[^>]*>", "", shown)) == source


def test_the_readme_has_one_unit_and_its_part_is_replaced(digits):
    part = table.readme(ROWS, HEARD, MEMORY, digits, SETTINGS)
    assert "MiB" not in part and "2.0 MB with `d_rtrl`" in part and "1,000 MB with BPTT" in part
    text = f"before\n{table.MARKS[0]}\nold\n{table.MARKS[1]}\nafter\n"
    assert table.put(part, text) == f"before\n{part}after\n"
    with pytest.raises(ValueError, match="no part"):
        table.put(part, "before")
    readme = (Path(table.__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    shown = readme.partition(table.MARKS[0])[2].partition(table.MARKS[1])[0]
    assert "| method | accuracy |" in shown and "MiB" not in shown


def test_a_chart_alone_is_a_picture():
    drawn = charts.alone(charts.sizes(MEMORY, stream.LENGTHS, charts.LABEL))
    root = ElementTree.fromstring(drawn)
    assert (
        root.tag == "{http://www.w3.org/2000/svg}svg" and len([e for e in root.iter() if e.get("class") == "line"]) == 2
    )
    kept = ElementTree.parse(Path(table.__file__).parents[1] / "docs" / "pictures" / "memory.svg")
    assert kept.getroot().get("viewBox") == root.get("viewBox")


def test_what_is_best_in_a_column_is_marked():
    """BPTT's cosine with itself is no contest."""
    assert table.best(ROWS) == {(1, 1), (0, 2), (0, 3), (1, 4), (0, 5), (0, 6)}
    style = (Path(table.__file__).parent / "page.css").read_text(encoding="utf-8")
    rules = [line for line in style.splitlines() if line.strip().startswith("#results")]
    assert rules and not [line for line in rules if re.search(r"font-weight: (?!400)", line)]  # nothing else is bold
