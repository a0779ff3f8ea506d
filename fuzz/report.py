"""A failure as a short program of its own."""

from __future__ import annotations

from .cases import RULES, Case
from .claims import Failure
from .spec import Model, source

CHECK = """
import etrax

length = {steps}
learner = etrax.compile(step, {rule}, *(x[0] for x in xs), params=params, hidden=hidden)
{changed}{mask}
(value, grads), state = learner.value_and_grad(loss, window=min({window}, length), reduction="{reduction}")(
    params, learner.init(), xs, None if xs else jnp.zeros(length), mask
)
{restored}

def bptt(params):
    weight = jnp.ones(length) if mask is None else mask

    def body(h, along):
        x, w = along
        h, o = step(params, h, *x)
        if w.ndim:
            return h, (jax.vmap(lambda o: loss(jax.tree.map(lambda a: a[None], o)))(o) * w).sum() / scale
        return h, loss(o) * w / scale

    scale = weight.sum() if "{reduction}" == "mean" else 1
    return lax.scan(body, hidden, (xs, weight))[1].sum()


want_value, want = jax.value_and_grad(bptt, allow_int=True)(params)
print("loss", value, "by itself", want_value)
for name in params:
    if jnp.issubdtype(params[name].dtype, jnp.inexact):
        g, w = np.asarray(grads[name], complex).ravel(), np.asarray(want[name], complex).ravel()
        error = np.linalg.norm(g - w) / max(np.linalg.norm(w), 1e-300)
        kind = learner.report.verdicts[(name,)].kind
        print(name, kind, f"relative error {{error:.2e}}, size {{np.linalg.norm(w):.2e}}")
"""


CHANGED = """before = {name: np.array(a) for name, a in c.items()}
for a in c.values():
    if isinstance(a, np.ndarray):
        a[...] = 0.4 - 1.5 * a
"""
RESTORED = "c.update(before)"
OUTER = """

def learned(p):
    state = learner.init(p, hidden)
    run = learner.value_and_grad(loss, window=min({window}, length), reduction="{reduction}")
    return run(p, state, xs, None if xs else jnp.zeros(length), mask)[0][0]


through = jax.grad(learned, allow_int=True)(params)
for name in params:
    print("jax.grad through the loss", name, through[name], "by itself", want[name])
"""


def script(model: Model, case: Case, failure: Failure, seed: int) -> str:
    """A program that shows the failure."""
    head = f"# {failure.claim}\n# {failure.detail.splitlines()[0][:110]}\n# seed {seed}, {case}\n"
    shape = {"steps": "length", "samples": f"(length, {model.samples})"}.get(case.mask)
    mask = "mask = None"
    if shape:
        mask = f"mask = np.random.RandomState(1).uniform(0.5, 1.5, {shape})\nmask.ravel()[1::3] = 0"
    changed, restored = (CHANGED, RESTORED) if case.extra == "constants" else ("", "")
    check = (CHECK + (OUTER if case.extra == "outer" else "")).format(
        changed=changed, restored=restored, mask=mask, steps=model.steps, rule=RULES[case.rule], window=case.window,
        reduction=case.reduction,
    )  # fmt: skip
    return head + source(model) + check
