"""Many devices: a program over whole arrays as the program of one device. See README.md in this folder."""

from . import _indices as _indices
from . import _nested as _nested
from . import _pieces as _pieces
from . import _rules as _rules
from ._layout import Alone as Alone
from ._layout import Shardings as Shardings
from ._layout import align_entries as align_entries
from ._layout import check_mesh as check_mesh
from ._layout import cut_sizes as cut_sizes
from ._layout import layout as layout
from ._layout import place_like as place_like
from ._partition import Walk as Walk
from ._place import Local as Local
from ._place import Place as Place
from ._step import Device as Device
from ._step import Dims as Dims
from ._step import LocalStep as LocalStep
from ._step import local_step as local_step
from ._step import travels as travels
