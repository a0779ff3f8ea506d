"""Boxes stand apart, inside the picture, and where they want to be as far as that goes."""

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import isotonic_regression
from tests.report.models import layers, mixed, stateless
from tests.zoo import ZOO

import etrax
from etrax.report._drawing import Column, drawing_of, folded, part_of
from etrax.report._layout import place, spread

MODELS = {"mixed": mixed, "layers": lambda: layers(4), "stateless": stateless}


@pytest.fixture(scope="module", params=MODELS)
def drawing(request):
    return drawing_of(MODELS[request.param]().report)


def check(drawing):
    placed = place(drawing)
    assert set(placed.boxes) == {n.id for n in drawing.nodes}
    boxes = list(placed.boxes.values())
    for i, a in enumerate(boxes):
        assert a.x >= 0 and a.x + a.width <= placed.width
        assert a.y >= 0 and a.y + a.height <= placed.height
        for b in boxes[:i]:
            apart = a.x + a.width <= b.x or b.x + b.width <= a.x or a.y + a.height <= b.y or b.y + b.height <= a.y
            assert apart, (a, b)
    ids = {n.id for n in drawing.nodes}
    assert all({k.source, k.target} <= ids for k in drawing.links)


def test_boxes_stand_apart(drawing):
    check(drawing)
    check(folded(drawing, "band-"))
    for band in range(drawing.bands):
        check(part_of(drawing, band))


def test_columns_go_from_parameters_to_outputs(drawing):
    boxes = place(drawing).boxes
    column = {n.id: n.column for n in drawing.nodes}
    for link in drawing.links:
        if not link.reads and column[link.source] != column[link.target]:
            assert boxes[link.source].x < boxes[link.target].x
    for node in drawing.nodes:
        if node.column is Column.PARAMETER:
            assert boxes[node.id].x == min(b.x for b in boxes.values())


def test_a_stack_of_layers_is_drawn_in_order_and_without_crossings():
    drawing = drawing_of(layers(5).report)
    boxes = place(drawing).boxes
    groups = [boxes[f"group-{g}"].y for g in range(5)]
    assert groups == sorted(groups)
    flow = [(boxes[k.source].middle, boxes[k.target].middle) for k in drawing.links
            if k.source.startswith("parameter") and k.target.startswith("op")]  # fmt: skip
    assert [b for _, b in sorted(flow)] == sorted(b for _, b in flow)


def test_folding_keeps_groups_and_their_order():
    drawing = drawing_of(layers(5).report)
    small = folded(drawing, "band-")
    boxes = place(small).boxes
    assert sum(n.column is Column.GROUP for n in small.nodes) == 5
    assert [n.lines[0] for n in small.nodes if n.column is Column.OP] == ["3 parameters"] * 5 + ["1 parameter"]
    assert all(boxes[f"fold-{b}"].y == boxes[f"group-{b}"].y for b in range(5))


SIZES = st.lists(st.tuples(st.floats(-200, 200), st.floats(1, 50)), min_size=1, max_size=12)


@given(SIZES, st.floats(0, 20))
def test_spread_is_the_nearest_placement_without_overlap(boxes, gap):
    wanted, sizes = np.array([w for w, _ in boxes]), np.array([s for _, s in boxes])
    tops = np.array(spread(list(wanted), list(sizes), gap))
    # t_i = m_i + offset_i with m increasing: the least-squares m is an isotonic regression.
    offset = np.concatenate([[0], np.cumsum(sizes + gap)[:-1]])
    best = isotonic_regression(wanted - sizes / 2 - offset).x + offset
    np.testing.assert_allclose(tops, best, atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("name", ZOO)
def test_every_model_of_the_zoo_can_be_drawn(name):
    entry = ZOO[name]
    for module in entry.needs:
        pytest.importorskip(module)
    model = entry()
    first = jax.tree.map(lambda a: a[0], model.make_inputs(1, 0))
    report = etrax.compile(model.step, "d_rtrl", *first, params=model.params, hidden=model.hidden).report
    drawing = drawing_of(report)
    check(drawing)
    check(folded(drawing, "band-"))
    assert report.to_html().endswith("</html>\n")
