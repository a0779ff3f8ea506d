"""The learning rules, one line each: a name here is `etrax.<name>`, and `etrax.compile` takes it as a text."""

from ._auto import auto as auto
from ._d_rtrl import d_rtrl as d_rtrl
from ._e_prop import e_prop as e_prop
from ._kf_rtrl import kf_rtrl as kf_rtrl
from ._ostl import ostl as ostl
from ._ottt import ottt as ottt
from ._partition import partition as partition
from ._pp_prop import pp_prop as pp_prop
from ._rflo import rflo as rflo
from ._rtrl import rtrl as rtrl
from ._snap import snap as snap
from ._synthetic import synthetic as synthetic
from ._tbptt import tbptt as tbptt
from ._three_factor import three_factor as three_factor
from ._uoro import uoro as uoro
