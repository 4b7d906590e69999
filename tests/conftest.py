"""What holds for all tests."""

import signal

# A shell that starts a program in the background lets it ignore Ctrl-C, and its children inherit that: the
# programs under test are to hear it wherever the tests run.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
