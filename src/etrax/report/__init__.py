"""What you get under a rule, in words and as a page. See README.md in this folder."""

from ._escape import monospace as monospace
from ._lines import GroupLine as GroupLine
from ._lines import OpLine as OpLine
from ._lines import ParameterLine as ParameterLine
from ._report import Report as Report
