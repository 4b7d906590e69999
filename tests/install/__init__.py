"""Installs a folder of `make wheelhouse` in several ways: `make install-tests`."""
