"""The linear recurrent unit."""

import brainstate
import jax
import jax.numpy as jnp

from ._base import Cell, parameter


class LRUCell(Cell):
    r"""The linear recurrent unit (Orvieto et al., 2023, arXiv:2303.06349): one complex diagonal state.

    .. math::
        \lambda &= \exp(-e^{\nu} + i e^{\theta}) \\
        h_t &= \lambda \odot h_{t-1} + e^{\gamma} \odot (B x_t), \quad B = B_{re} + i B_{im} \\
        y_t &= \mathrm{Re}(C h_t) + D \odot x_t, \quad C = C_{re} + i C_{im}

    Input and output have `d_model` features, the state `d_hidden`. At the start :math:`|\lambda|` is spread over the
    ring between `r_min` and `r_max`, its phase over `[0, max_phase]`, and :math:`e^{\gamma} = \sqrt{1 - |\lambda|^2}`.

    >>> import jax.numpy as jnp
    >>> cell = LRUCell(3, 4)
    >>> cell.init_state(batch_size=5)
    >>> cell(jnp.ones((5, 3))).shape, cell.h.value.shape, cell.h.value.dtype.kind
    ((5, 3), (5, 4), 'c')
    """

    def __init__(
        self,
        d_model: int,
        d_hidden: int,
        r_min: float = 0.0,
        r_max: float = 1.0,
        max_phase: float = 6.28,
        *,
        name: str | None = None,
    ):
        if not 0 <= r_min < r_max <= 1:
            raise ValueError(
                f"`LRUCell` needs 0 <= `r_min` < `r_max` <= 1, found `r_min` = {r_min} and `r_max` = {r_max}."
            )
        super().__init__(d_model, d_model, name=name)
        self.state_size = (d_hidden,)

        # Uniform in area on the ring; away from its ends, where a logarithm below would be infinite.
        u, phase = (brainstate.random.uniform(1e-6, 1 - 1e-6, size=(d_hidden,)) for _ in range(2))
        squared_radius = u * (r_max**2 - r_min**2) + r_min**2
        self.nu_log = brainstate.ParamState(jnp.log(-0.5 * jnp.log(squared_radius)))
        self.theta_log = brainstate.ParamState(jnp.log(max_phase * phase))
        self.gamma_log = brainstate.ParamState(0.5 * jnp.log1p(-squared_radius))

        normal = brainstate.nn.init.Normal
        self.B_re = brainstate.ParamState(parameter(normal((2 * d_model) ** -0.5), (d_model, d_hidden)))
        self.B_im = brainstate.ParamState(parameter(normal((2 * d_model) ** -0.5), (d_model, d_hidden)))
        self.C_re = brainstate.ParamState(parameter(normal(d_hidden**-0.5), (d_hidden, d_model)))
        self.C_im = brainstate.ParamState(parameter(normal(d_hidden**-0.5), (d_hidden, d_model)))
        self.D = brainstate.ParamState(parameter(normal(1.0), (d_model,)))

    def initial_states(self, batch_size: int | None) -> dict[str, jax.Array]:
        zeros = self.initial_value(self.state_init, batch_size)
        return {"h": jax.lax.complex(zeros, zeros)}

    def update(self, x: jax.Array) -> jax.Array:
        decay = jnp.exp(jax.lax.complex(-jnp.exp(self.nu_log.value), jnp.exp(self.theta_log.value)))
        scale = jnp.exp(self.gamma_log.value)
        drive = jax.lax.complex(scale * (x @ self.B_re.value), scale * (x @ self.B_im.value))
        h = decay * self.h.value + drive
        self.h.value = h
        return h.real @ self.C_re.value - h.imag @ self.C_im.value + self.D.value * x
