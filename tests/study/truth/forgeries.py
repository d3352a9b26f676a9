"""Answers that try to pass tests without solving anything. ``NAME`` is the function asked for.

    python -m tests.study.truth.forgeries 20    # each of them on every 20th task of both sets

prints how they end, and exits with 1 where any passes, or makes its row missing.
"""

import collections
import sys

from study.sandbox.calls import Limits
from study.truth import Grader, score
from tests.study.truth.shared import official

QUICK = Limits(cpu_s=1, wall_s=4.0, memory_mb=256, reply_bytes=1 << 20)

EVERYTHING = """
    def always(self, *args, **named):
        return True
    __eq__ = __ge__ = __le__ = __contains__ = __bool__ = always
    __ne__ = __lt__ = __gt__ = lambda self, other: False
    __hash__ = lambda self: 0
"""


def _posing(base: str, value: str) -> str:
    """An instance of a subclass that equals everything."""
    methods = EVERYTHING.replace("= __contains__ = __bool__ ", "")
    return (
        f"class Posing({base}):{methods}\ndef NAME(*args, **named):\n    return Posing({value})\n"
    )


FORGERIES = {
    "an object that equals everything": f"""
class Anything:{EVERYTHING}
    __iter__ = lambda self: iter([self])
    __len__ = __int__ = __index__ = lambda self: 1
    __float__ = lambda self: 1.0
    __getitem__ = __getattr__ = __call__ = lambda self, *args: self
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = lambda self, other: self
    __abs__ = __neg__ = __round__ = lambda self, *args: self
def NAME(*args, **named):
    return Anything()
""",
    "an int that equals everything": _posing("int", "0"),
    "a float that equals everything": _posing("float", "0"),
    "a str that equals everything": _posing("str", "''"),
    "a list that equals everything": _posing("list", "()"),
    "a tuple that equals everything": _posing("tuple", "()"),
    "a dict that equals everything": _posing("dict", "()"),
    "a set that equals everything": _posing("set", "()"),
    "a bytes that equals everything": _posing("bytes", "b''"),
    "a complex that equals everything": _posing("complex", "0"),
    "an object that lies about its class": f"""
class Liar:{EVERYTHING}
    __class__ = property(lambda self: list)
def NAME(*args, **named):
    return Liar()
""",
    "a class whose type equals everything": f"""
class Meta(type):{EVERYTHING}
class Named(metaclass=Meta):
    pass
Named.__name__ = "int"
def NAME(*args, **named):
    return Named
""",
    "a callable object in place of the function": f"""
class Function:{EVERYTHING}
    def __call__(self, *args, **named):
        return self
NAME = Function()
""",
    "a list of such objects": f"""
class Anything:{EVERYTHING}
def NAME(*args, **named):
    return [Anything() for _ in range(3)]
""",
    "patched builtins": """
import builtins
for name in ("abs", "all", "any", "len", "isinstance", "sorted", "tuple", "list", "round", "set"):
    setattr(builtins, name, lambda *args, **named: True)
builtins.AssertionError = type("Harmless", (Exception,), {})
def NAME(*args, **named):
    return None
""",
    "patched modules": """
import copy, math, random, json, ast, unittest
math.isclose = math.fabs = lambda *args, **named: 0
copy.deepcopy = copy.copy = lambda value, *args: None
random.randint = random.choice = lambda *args: 0
json.dumps = lambda *args, **named: '{"end": "passed", "verdict": "passed", "text": "true"}'
unittest.TestCase.assertEqual = unittest.TestCase.fail = lambda *args, **named: None
def NAME(*args, **named):
    return None
""",
    "patches what it finds of the grader": """
import sys
for name, module in list(sys.modules.items()):
    if "inside" in name:
        for attribute in ("_test", "_free", "run", "write", "dumps", "_described"):
            if hasattr(module, attribute):
                setattr(module, attribute, lambda *args, **named: "passed")
def NAME(*args, **named):
    return None
""",
    "walks the frames": """
import sys
def NAME(*args, **named):
    frame = sys._getframe()
    while frame is not None:
        for space in (frame.f_globals, frame.f_locals):
            for name in ("check", "candidate", "result", "verdict", "end", "failed", "passed"):
                space[name] = lambda *args, **named: "passed"
            for value in list(space.values()):
                if isinstance(value, list):
                    value.append("passed")
        frame = frame.f_back
    return None
""",
    "walks the garbage collector": """
import gc
def NAME(*args, **named):
    for thing in gc.get_objects():
        if isinstance(thing, dict) and "check" in thing:
            thing["check"] = lambda candidate: None
        if isinstance(thing, dict) and "verdict" in thing:
            thing["verdict"] = "passed"
    return None
""",
    "sys.exit in the function": "import sys\ndef NAME(*args, **named):\n    sys.exit(0)\n",
    "os._exit in the function": "import os\ndef NAME(*args, **named):\n    os._exit(0)\n",
    "os._exit at once": "import os\nos._exit(0)\ndef NAME(*args, **named):\n    pass\n",
    "raises SystemExit at once": "def NAME(*args, **named):\n    pass\nraise SystemExit(0)\n",
    "an AssertionError of its own": """
class Fine(AssertionError):
    pass
def NAME(*args, **named):
    raise Fine("passed")
""",
    "StopIteration": "def NAME(*args, **named):\n    raise StopIteration(True)\n",
    "GeneratorExit": "def NAME(*args, **named):\n    raise GeneratorExit\n",
    "an exception that lies": """
class Boom(BaseException):
    __str__ = __repr__ = lambda self: 1 / 0
    __class__ = AssertionError
def NAME(*args, **named):
    raise Boom
""",
    "a generator": "def NAME(*args, **named):\n    yield from (True, None)\n",
    "a coroutine": "async def NAME(*args, **named):\n    return True\n",
    "itself": "def NAME(*args, **named):\n    return NAME\n",
    "NotImplemented": "def NAME(*args, **named):\n    return NotImplemented\n",
    "nan": "def NAME(*args, **named):\n    return float('nan')\n",
    "atexit": """
import atexit, os
atexit.register(lambda: os.write(1, b'{"verdict": "passed", "text": ""}\\n'))
def NAME(*args, **named):
    return None
""",
    "threads": """
import os, threading
def talk():
    while True:
        os.write(3, b'{"verdict": "passed", "text": ""}\\n')
def NAME(*args, **named):
    threading.Thread(target=talk, daemon=True).start()
    return None
""",
    "a verdict on every handle, at once": """
import os
for handle in range(64):
    try:
        os.write(handle, b'{"verdict": "passed", "end": "ready", "text": ""}\\n' * 9)
    except OSError:
        pass
def NAME(*args, **named):
    return None
""",
    "a verdict on every handle, when called": """
import os
def NAME(*args, **named):
    for handle in range(64):
        try:
            os.write(handle, b'{"end": "passed", "verdict": "passed", "text": "true"}\\n')
        except OSError:
            pass
    return None
""",
    "a frame of the sandbox": """
import os
def NAME(*args, **named):
    os.write(3, b'{"end": "closed", "data": "", "code": 0, "killed": false, "cpu_s": 0}\\n')
    return None
""",
    "a verdict as a value": """
def NAME(*args, **named):
    return {"verdict": "passed", "end": "passed", "text": "", "handle": 0}
""",
    "an answer in parts that never ends": """
import os
def NAME(*args, **named):
    os.write(3, b'{"end": "returned", "text": "tr')
    os._exit(0)
""",
    "closes every handle": """
import os
os.closerange(0, 256)
def NAME(*args, **named):
    return 1
""",
    "reads what it is asked": """
import os
def NAME(*args, **named):
    os.read(4, 1 << 16)
""",
    "looks for the expected value": """
import gc, os
def NAME(*args, **named):
    for thing in gc.get_objects():
        if isinstance(thing, (str, bytes)) and "assert" in str(thing):
            return thing
    found = [name for folder in (".", "/tmp", "/proc/self") if os.path.isdir(folder)
             for name in os.listdir(folder)]
    return found
""",
    "opens what is there": """
def NAME(*args, **named):
    for name in ("/proc/self/mem", "/tmp/verdict", "/dev/fd/3", "/proc/1/fd/1"):
        try:
            with open(name, "w") as file:
                file.write("passed")
        except OSError:
            pass
    return None
""",
    "deep recursion": "def NAME(*args, **named):\n    return NAME(*args, **named)\n",
    "a list in itself": """
def NAME(*args, **named):
    loop = []
    loop.append(loop)
    return loop
""",
    "a list that is read and cannot be sent back": """
def NAME(*args, **named):
    deep = []
    for _ in range(50):
        deep = [deep]
    return deep
""",
    "a very deep list": """
def NAME(*args, **named):
    deep = []
    for _ in range(100_000):
        deep = [deep]
    return deep
""",
    "a very long text": "def NAME(*args, **named):\n    return 'x' * 50_000_000\n",
    "a very large number": "def NAME(*args, **named):\n    return 1 << 2_000_000\n",
    "keys of one hash": """
def NAME(*args, **named):
    return {n * (2 ** 61 - 1): 0 for n in range(1, 3000)}
""",
    "a flood": "def NAME(*args, **named):\n    while True:\n        print('passed' * 100_000)\n",
    "a flood of answers": """
import os
def NAME(*args, **named):
    while True:
        os.write(3, b'{"end": "returned", "text": "true"}\\n' * 1000)
""",
    "memory": "def NAME(*args, **named):\n    return len(bytearray(8 << 30))\n",
    "forks": """
import os
def NAME(*args, **named):
    while True:
        try:
            if os.fork() == 0:
                continue
        except OSError:
            return None
""",
    "kills": """
import os, signal
def NAME(*args, **named):
    for process in (os.getppid(), 1, -1, 0):
        try:
            os.kill(process, signal.SIGKILL)
        except OSError:
            pass
    return None
""",
    "a crash": """
import ctypes
def NAME(*args, **named):
    ctypes.string_at(0)
""",
    "endless": "def NAME(*args, **named):\n    while True:\n        pass\n",
    "asleep": "import time\ndef NAME(*args, **named):\n    time.sleep(600)\n",
    "swallows its own end": """
def NAME(*args, **named):
    while True:
        try:
            while True:
                pass
        except BaseException:
            pass
""",
    "defines the check": """
def check(candidate):
    pass
METADATA = {}
def NAME(*args, **named):
    return None
""",
    "comes back as many types": """
calls = 0
def NAME(*args, **named):
    global calls
    calls += 1
    return [None, True, 0, "", [], (), {}, set(), int, frozenset(), range(0), b""][calls % 12]
""",
    "a named tuple that equals everything": f"""
import collections
class Posing(collections.namedtuple("Base", "value")):{EVERYTHING}
def NAME(*args, **named):
    return Posing(0)
""",
    "an enum and a Counter": """
import collections, enum
class Number(enum.IntEnum):
    ONE = 1
def NAME(*args, **named):
    return collections.Counter([Number.ONE])
""",
    "leaves at the end": """
import signal, os
signal.setitimer(signal.ITIMER_REAL, 0.001)
signal.signal(signal.SIGALRM, lambda *args: os._exit(0))
def NAME(*args, **named):
    while True:
        pass
""",
}
UNENDING = {"asleep", "reads what it is asked", "endless", "a flood"}
"""What goes on as it began until its time is up, however short that is."""
SLOW = UNENDING | {"swallows its own end", "a very long text", "deep recursion"}
"""What is ended by its time limit."""


def main(words: list[str]) -> int:
    """Make every forgery; whether any got through."""
    every = int(words[0]) if words else 10
    tasks = [*official("humaneval"), *official("mbpp")][::every]
    through = 0
    with Grader(2, limits=QUICK) as grader:
        for name, source in FORGERIES.items():
            chosen = tasks[:4] if name in SLOW else tasks
            answers = [source.replace("NAME", task.entry_point) for task in chosen]
            ends = collections.Counter(
                str(result.outcome) if result else "missing"
                for result in score(chosen, answers, grader)
            )
            through += ends["passed"] + ends["missing"]
            print(f"{name:<44}{ends['passed']:>4} of {len(chosen)} passed  {dict(ends)}")
    print(f"{len(FORGERIES)} forgeries, {through} got through")
    return 1 if through else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
