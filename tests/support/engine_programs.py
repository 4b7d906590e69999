"""Programs for the engine process, which crash at certain moments."""


def _program(changes: str) -> str:
    """The program of an engine process, with these changes."""
    modules = "import os, signal, sys, threading, time\nfrom localchat.serving.engine import __main__ as program\n"
    return f"{modules}{changes}program.main(*map(int, sys.argv[1:]))"


# As on a machine whose matrix instructions fault: the process crashes while it loads a model with `use_extra_bufts`.
CRASHES_AT_AMX = _program("""
load = program.load
def crashing(path, options, *others):
    if options.use_extra_bufts:
        os.kill(os.getpid(), signal.SIGSEGV)
    return load(path, options, *others)
program.load = crashing
""")


def ends_in_load(statement: str) -> str:
    """The statement ends the process while it loads a model."""
    return _program(f"def load(*arguments):\n    {statement}\nprogram.load = load\n")


# It writes what ggml does, and aborts.
ABORTS = """
import os, sys
print("GGML_ASSERT(n > 0) failed", file=sys.stderr, flush=True)
os.abort()
"""

# A request crashes the library.
CRASHES_AT_SUBMIT = _program("""
def crashing(self, request, sequences):
    os.kill(os.getpid(), signal.SIGSEGV)
    time.sleep(60)
program.EngineMain.generate = crashing
""")

# The first request meets an error.
FAILS_AT_SUBMIT = _program("""
generate = program.EngineMain.generate
def failing(self, request, sequences):
    program.EngineMain.generate = generate
    raise ERROR
program.EngineMain.generate = failing
""")

# Requests are prepared only two at a time.
IN_PAIRS = _program("""
generate, barrier = program.EngineMain.generate, threading.Barrier(2)
def waiting(self, request, sequences):
    barrier.wait(60)
    generate(self, request, sequences)
program.EngineMain.generate = waiting
""")

# As in a container with a limit of processes: once the model is loaded, no thread can be started.
WITHOUT_THREADS = _program("""
send = program.EngineMain.send
def refusing(self):
    raise RuntimeError("can't start new thread")
def sending(self, messages):
    if messages[0][:2] == ("ended", 0):
        threading.Thread.start = refusing
    send(self, messages)
program.EngineMain.send = sending
""")

# Its engine fails for good at the first request, in such a way that it does not end the request.
FAILS = _program("""
from localchat.serving.engine.engine import Engine
from localchat.serving.engine.scheduler import Scheduler
load = program.load
def failing(path, options, *others):
    engine = load(path, options, *others)
    def fail(*arguments):
        raise SystemExit("a fault of the test")
    Scheduler.schedule = STOP = fail
    return engine
program.load = failing
""")

# The memory ends when the output of the first steps with tokens is to be sent.
WITHOUT_MEMORY_TO_SEND = _program("""
dumps = program.pickle.dumps
def failing(messages):
    if any(kind == "steps" and outputs for kind, outputs, *_ in messages):
        raise MemoryError
    return dumps(messages)
program.pickle.dumps = failing
""")

# As on a machine with LIMITED_MEMORY bytes, of which each other process of this program takes 30 MB beside its weights
# and its context. The folder LIMITED_FOLDER has a file for each process with what it takes.
LIMITED = _program("""
from pathlib import Path
from localchat.serving.engine.llama import load
from tests.support.live import engines_of
folder, load_engine = Path(os.environ["LIMITED_FOLDER"]), program.load
def taken(pid):
    file = folder / str(pid)
    return int(file.read_text()) if file.exists() and pid != os.getpid() else 0
def free_memory():
    return max(int(os.environ["LIMITED_MEMORY"]) - sum(map(taken, engines_of(os.getppid()))), 20_000_000)
def recording(*arguments, **options):
    engine = load_engine(*arguments, **options)
    (folder / str(os.getpid())).write_text(str(30_000_000 + engine.facts.n_bytes + engine.facts.n_context_bytes))
    return engine
load.free_memory, program.load = free_memory, recording
""")
