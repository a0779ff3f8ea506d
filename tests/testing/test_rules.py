"""The table of rules as text and as a page."""

import re

import jax
import jax.numpy as jnp
import numpy as np

import etrax
from etrax.testing import RuleRow, RuleTable, _rules
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


def step(params, h, x):
    h = jnp.tanh(x @ params["w"] + h @ params["u"])
    return h, h @ params["out"]


def squared(output, target):
    return ((output - target) ** 2).sum()


def drawn_data(steps=16, width=6):
    rng = np.random.default_rng(0)
    shapes = {"w": (3, width), "u": (width, width), "out": (width, 2)}
    params = {name: jnp.asarray(rng.standard_normal(shape) / 2) for name, shape in shapes.items()}
    return params, jnp.zeros((2, width)), rng.standard_normal((steps, 2, 3)), rng.standard_normal((steps, 2, 2))


def by_loop(params, xs, ys, mask, flags):
    """BPTT's gradient of the mean loss of steps that count, by `jax.grad` over a loop."""

    def total(params):
        h, out = jnp.zeros((2, 6)), 0.0
        for x, y, weight, again in zip(xs, ys, mask, flags, strict=True):
            h, o = step(params, jnp.where(again, 0.0, h), x)
            out += weight * squared(o, y)
        return out / mask.sum()

    return jax.grad(total)(params)


def angle(one, other):
    one, other = np.ravel(one), np.ravel(other)
    return float(one @ other / (np.linalg.norm(one) * np.linalg.norm(other)))


def test_masks_resets_and_the_least_cosine():
    params, h, xs, ys = drawn_data()
    mask, flags = np.ones(16), np.zeros(16, bool)
    mask[:5], flags[9] = 0, True
    rows = []
    table = etrax.compare_rules(
        step, squared, params, h, xs, ys, ["tbptt", "d_rtrl", "rtrl"], window=2, mask=mask, reset=flags,
        progress=rows.append,
    )  # fmt: skip
    assert tuple(rows) == table.rows
    true = by_loop(params, xs, ys, mask, flags)
    for rule in ("tbptt", "d_rtrl", "rtrl"):
        learner = etrax.compile(step, rule, xs[0], params=params, hidden=h)
        (_, grads), _ = learner.value_and_grad(squared, 2)(params, learner.init(), xs, ys, mask, flags)
        want = {(name,): angle(grads[name], true[name]) for name in params}
        np.testing.assert_allclose([table[rule].cosines[path] for path in want], list(want.values()), rtol=1e-8)
        path, least = table[rule].least
        assert least == min(table[rule].cosines.values()) and table[rule].cosines[path] == least
    assert table["rtrl"].least[1] > 1 - 1e-9 > table["d_rtrl"].least[1] and "'u'" in str(table)
    assert table.by_parameter().count("\n") == 3


def test_where_bptt_does_not_fit_the_meter_measures():
    params, h, xs, ys = drawn_data()
    rules = ["tbptt", "d_rtrl", "rtrl"]
    true = etrax.compare_rules(step, squared, params, h, xs, ys, rules, window=2)
    table = etrax.compare_rules(step, squared, params, h, xs, ys, rules, window=2, memory=1200)
    assert "BPTT would take" in str(table)
    assert "its trace takes" in table["rtrl"].left_out and "left out" in str(table)
    for rule in ("tbptt", "d_rtrl")[: 2 if not table["d_rtrl"].left_out else 1]:
        low, high = table[rule].interval
        assert low <= true[rule].cosine <= high and np.isnan(table[rule].time) and table[rule].seconds > 0


def test_what_takes_too_long_is_estimated(monkeypatch):
    params, h, xs, ys = drawn_data()
    monkeypatch.setattr(_rules, "MOST_TIME", 1e-3)
    table = etrax.compare_rules(step, squared, params, h, xs, ys, ["rtrl"], window=2)
    assert "× the time of BPTT" in table["rtrl"].left_out and np.isnan(table["rtrl"].cosine)
    asked = etrax.compare_rules(step, squared, params, h, xs, ys, ["rtrl"], window=2, slow=True)
    assert not asked["rtrl"].left_out and asked["rtrl"].cosine > 1 - 1e-9


def test_rows_are_shown_as_they_come(capsys):
    params, h, xs, ys = drawn_data()
    etrax.compare_rules(step, squared, params, h, xs, ys, ["tbptt", etrax.directional()], window=2, progress=True)
    shown = capsys.readouterr().err.splitlines()
    assert [line.partition("(")[0] for line in shown] == ["tbptt", "directional"]
