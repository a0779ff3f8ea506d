"""The performance page and the README's table say what is stored, and nothing else."""

from benchmarks import page, suite, tables

from .sizes import row


def test_the_page_is_that_of_the_stored_results():
    assert (page.ROOT / "docs" / "performance.md").read_text(encoding="utf-8") == page.performance(page.STORED.parent)


def test_the_readme_is_that_of_the_stored_results():
    readme = (page.ROOT / "README.md").read_text(encoding="utf-8")
    assert page.with_table(readme, page.tables_of_readme(tables.load(page.STORED))) == readme


def test_a_case():
    rows = [
        row("gru B1", "BPTT", [2.0, 2.0], working=20 * 2**20),
        row("gru B1", "etrax d_rtrl K=1", [1.0, 3.0], working=2**20, steps=5),
        row("gru B1", "braintrace X", [])._replace(error="ValueError: no"),
    ]
    lines = page.case_table(rows)[2:]
    assert lines[0].startswith("| BPTT | ") and "1.00 (1.00–1.00) | 20.0 |" in lines[0]
    assert "etrax d_rtrl K=1 (5 steps)" in lines[1] and "| 1.0 |" in lines[1]
    assert "it failed: ValueError: no" in lines[2]


def test_growth():
    rows = [
        row(rival="BPTT", seconds=[s], working=w * 2**20, sweep="T", T=t) for t, s, w in ((10, 1.0, 1), (20, 2.0, 2))
    ]
    said, _, header, _, first = page.growth_table(rows, "T")
    assert said.startswith("GRU, longer sequences (") and header == "| T | 10 | 20 |" and first.startswith("| BPTT | ")


def test_growth_of_windows():
    """A column a window; what has none says the same in each."""
    rows = [row(rival=rival, seconds=[1.0], sweep="K", T=10) for rival in ("BPTT", "etrax a K=1", "etrax a K=4")]
    lines = page.growth_table(rows, "K")[2:]
    assert lines[0] == "| K | 1 | 4 |" and [line.partition(" |")[0] for line in lines[2:]] == ["| BPTT", "| etrax a"]
    assert all(line.count(" ms") == 2 for line in lines[2:])


def test_every_case_has_a_title():
    for case in suite.suite("quick"):
        assert case.sweep in page.GROWTH if case.sweep else any(case.name.startswith(k) for k in page.TITLES), case.name


def test_a_bar_that_is_not_met_is_seen():
    bar = {"text": "a", "limit": 0.5, "value": 0.7, "met": False}
    assert page.bar_table([bar])[2] == "| a | 0.5 | 0.7 | **not met** |"
    assert "not measured" in page.bar_table([{**bar, "value": None, "met": None}])[2]


def test_structure_shows_what_was_measured():
    rows = [
        row("recall B4 N256 T256", rival, [s], working=w * 2**20)._replace(cosine=c)
        for rival, s, w, c in (
            ("BPTT", 2.0, 20, 1.0),
            ("etrax tbptt K=16", 1.0, 1, 0.3),
            ("etrax d_rtrl K=16", 3.0, 2, 1.0),
        )
    ]
    lines = page.structure_table(rows).splitlines()
    assert lines[2:] == ["| one layer, a cue long ago (16) | 20.0 MiB | 0.50, 1.0 MiB, 0.300 | 1.50, 2.0 MiB, 1.000 |"]
