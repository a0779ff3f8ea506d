"""The page as a browser would read it, by the parser of the standard library."""

import json
import re
from html.parser import HTMLParser

import pytest
from tests.report.models import layers, mixed, stateless

VOID = {"meta", "wbr", "input", "br", "link", "img"}
MODELS = {"mixed": mixed, "three layers": lambda: layers(3), "many": lambda: layers(20), "stateless": stateless}


class Page(HTMLParser):
    """Elements with attributes, and the text outside of styles and scripts; complains about tags left open."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.elements, self.text, self.rows = [], [], [], []
        self.feed(text)
        self.close()
        assert not self.open, f"left open: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag == "tr":
            self.rows.append((dict(attrs).get("id"), []))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("script", "style"):
            self.text.append(data)
            if "tr" in self.open:
                self.rows[-1][1].append(data)

    def all(self, tag):
        return [attrs for name, attrs in self.elements if name == tag]


@pytest.fixture(scope="module", params=MODELS)
def case(request):
    report = MODELS[request.param]().report
    text = report.to_html()
    return report, text, Page(text)


def test_ids_are_unique_and_links_lead_somewhere(case):
    _, _, page = case
    ids = [attrs["id"] for _, attrs in page.elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    used = [attrs["href"] for _, attrs in page.elements if "href" in attrs]
    assert used
    assert {h[1:] for h in used} <= set(ids)
    ends = {attrs[end] for _, attrs in page.elements for end in ("data-from", "data-to") if end in attrs}
    assert ends <= set(ids)
    named = {attrs[a] for _, attrs in page.elements for a in ("aria-labelledby",) if a in attrs}
    assert named <= set(ids)


def test_nothing_is_fetched(case):
    _, text, page = case
    assert not [
        t for t, _ in page.elements if t in ("link", "img", "iframe", "object", "embed", "base", "video", "audio")
    ]
    assert not [a for _, a in page.elements if "src" in a or "action" in a or "srcset" in a]
    assert "://" not in text
    assert not re.search(r"url\(|@import|fetch\(|XMLHttpRequest|import\(", text)
    policy = [a["content"] for a in page.all("meta") if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy and policy[0].startswith("default-src 'none'")


def test_every_parameter_has_a_row_with_verdict_and_reason(case):
    report, _, page = case
    rows = {key: "".join(words) for key, words in page.rows}
    for i, p in enumerate(report.parameters):
        said = rows[f"row-{i}"]
        assert p.verdict.kind in said
        assert p.verdict.full.replace("`", "").translate({7: 0xFFFD, 0xD800: 0xFFFD}) in said
        assert ("×".join(map(str, p.shape)) or "scalar") in said
    assert len([key for key in rows if (key or "").startswith("row-")]) == len(report.parameters)


def test_every_parameter_op_group_and_output_is_a_node_that_the_keyboard_reaches(case):
    report, _, page = case
    nodes = [a for a in page.all("a") if "node" in a.get("class", "").split()]
    assert all(a["href"].startswith("#") and a["aria-label"] for a in nodes)
    ends = [a["id"].split("-", 1)[1] if a["id"].startswith("b") else a["id"] for a in nodes]
    for what, rows in (("parameter", report.parameters), ("op", report.ops)):
        assert {f"{what}-{i}" for i in range(len(rows))} <= set(ends)
    for what, rows in (("group", report.groups), ("output", report.outputs)):
        assert {f"{what}-{i}" for i in range(len(rows))} <= {e.removeprefix("o-") for e in ends}


def test_a_verdict_is_a_word_and_a_shape_beside_its_colour(case):
    report, _, page = case
    shapes = {a["href"] for a in page.all("use")}
    assert {f"#shape-{p.verdict.kind}" for p in report.parameters} == shapes
    symbols = [a["id"] for a in page.all("symbol")]
    assert {h[1:] for h in shapes} <= set(symbols)


def test_headings_tables_and_language(case):
    report, _, page = case
    assert page.all("html") == [{"lang": "en"}]
    assert len(page.all("h1")) == 1
    assert len(page.all("title")) >= 1
    heads = page.all("th")
    assert all(h["scope"] in ("row", "col") for h in heads)
    text = "".join(page.text)
    for name in report.memory:
        assert name in text
    for group in report.groups:
        assert group.structure in text
        assert all(state[1:-1] in text for state in group.states)


def test_names_are_escaped():
    text = mixed().report.to_html()
    assert text.count("<script>") == text.count("</script>") == 1
    assert "alert(&#x27;x&#x27;)" in text
    assert "\x07" not in text
    text.encode("utf-8")


def test_the_same_report_gives_the_same_bytes():
    assert mixed().report.to_html() == mixed().report.to_html()


def test_to_html_writes_the_file_and_returns_its_path(tmp_path):
    report = layers(2).report
    written = report.to_html(tmp_path / "r.html")
    assert written == tmp_path / "r.html"
    assert written.read_text(encoding="utf-8") == report.to_html()
    assert report.to_html(str(tmp_path / "s.html")).read_bytes() == written.read_bytes()


def test_to_dict_is_json_and_names_what_ops_reach():
    found = json.loads(json.dumps(layers(2).report.to_dict()))
    assert found["outputs"] == ["'output'"]
    # kernel, recurrent and bias of each layer, and the head: what follows from the equations of the model.
    at = {p["path"][-1] + str(p["path"][1] if len(p["path"]) > 1 else ""): i for i, p in enumerate(found["parameters"])}
    ops = {op["parameters"][0]: op for op in found["ops"]}
    assert [op["primitive"] for op in found["ops"]].count("dot_general") == 5
    assert ops[at["recurrent0"]]["reads"] == [0] and ops[at["recurrent0"]]["groups"] == [0]
    assert ops[at["kernel0"]]["reads"] == [] and ops[at["kernel0"]]["groups"] == [0]
    assert ops[at["kernel1"]]["reads"] == [0] and ops[at["kernel1"]]["groups"] == [1]
    assert ops[at["head"]]["reads"] == [1] and ops[at["head"]]["groups"] == [] and ops[at["head"]]["outputs"] == [0]
