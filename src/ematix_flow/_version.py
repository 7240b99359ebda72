"""The version: both packages have the one that `ematix_probe` declares, which is also installed alone."""

from ematix_probe._version import __version__ as __version__
