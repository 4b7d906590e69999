"""Formats sizes for people."""


def gigabytes(n_bytes: float) -> str:
    """A size as "0.7 GB" or "12 MB"."""
    if n_bytes < 1e8:
        return f"{n_bytes / 1e6:.0f} MB"
    return f"{n_bytes / 1e9:.1f} GB"
