"""Installs a folder of `make wheelhouse` as a new user would, in several surroundings: `make install-tests`."""
