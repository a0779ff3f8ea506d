"""One update of a learner as a file, and a file as an update. See README.md in this folder."""

from ._artifact import Artifact as Artifact
from ._artifact import load as load
from ._artifact import save_artifact as save_artifact
