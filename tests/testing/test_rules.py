"""The table of rules as text and as a page."""

import re

from etrax.testing import RuleRow, RuleTable
from etrax.testing._rules import drawn

ROWS = (
    RuleRow("tbptt()", 0, 2.8, 0.72),
    RuleRow("pp_prop(decay=0.9)", 1220, 3.3, 0.99), RuleRow("rtrl()", 45_100, 4.0, 1.0),
    RuleRow("uoro()", refused="needs a key <b>"),
)  # fmt: skip


def test_the_page_has_a_table_and_a_picture(tmp_path):
    RuleTable(ROWS, window=3, steps=20).to_html(tmp_path / "rules.html")
    page = (tmp_path / "rules.html").read_text(encoding="utf-8")
    assert page.count("<tr>") == 5 and "needs a key &lt;b&gt;" in page
    assert page.count("<circle") == 3  # a rule that refused has no point


def test_points_stand_where_their_numbers_say():
    places = re.findall(r'cx="([\d.]+)" cy="([\d.]+)"', drawn([(r.rule, r.trace, r.cosine) for r in ROWS]))
    along, up = zip(*[(float(x), float(y)) for x, y in places], strict=True)
    assert along == tuple(sorted(along)) and up == tuple(sorted(up, reverse=True))
    assert all(0 < y < 260 for y in up) and drawn([]) == ""
