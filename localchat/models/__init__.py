"""Model files: what their headers say, and which one a name means."""
