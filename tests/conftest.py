"""What holds for all tests."""

import signal

from hypothesis import settings

# A shell that starts a program in the background lets it ignore Ctrl-C, and its children inherit that: the
# programs under test are to hear it wherever the tests run.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says no more than how busy the machine is.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")
