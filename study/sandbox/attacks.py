"""What hostile code tries, and how each attempt has to end: the table that tests and users run.

Every attack is a function ``attack(where)``; ``where`` names real targets: a file that holds a
secret, paths to write, a port with a listener, a process to kill. It returns what it got hold of,
nothing being ``None`` or an empty list, so ``returned`` with nothing is a refusal as well.

An attack proves that it could; it destroys nothing that was not made for it, since a sandbox may
fail: what exists is opened and not written, and whoever is not the victim is sent signal 0.
"""

from __future__ import annotations

import contextlib
import os
import platform
import secrets
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from study.sandbox import tiers
from study.sandbox.calls import Call, Limits, Outcome, Result, passes
from study.sandbox.tiers import Tier
from study.sandbox.worker import Broken, Worker

QUICK = Limits(cpu_s=1, wall_s=2.0, memory_mb=256)
SECRET = "a-secret-that-nobody-may-read"
EXPECTED = "EXPECTED-VALUE-4711"
"""Stands for what an answer is compared with; it is never sent."""
VARIABLE = "JUDGEDRIFT_CANARY"
NOTHING = (None, [], "", 0, False)
TRIED = """
def tried(*attempts):
    got = []
    for attempt in attempts:
        try:
            found = attempt()
        except (OSError, RuntimeError, ValueError, AttributeError, IndexError):
            continue
        got.append(repr(found)[:80])
    return got
"""
"""What most attacks begin with: which of several attempts were not refused."""


@dataclass(frozen=True)
class Attack:
    """One attempt.

    Attributes:
        ends: the outcomes that hold it off; ``returned`` only where nothing was got.
        cheats: it answers for a wrong solution: any value holds but the one expected.
        harmless: it may run without isolation, as the proof that this table can fail.
    """

    name: str
    source: str
    ends: frozenset[Outcome] = frozenset({Outcome.RETURNED})
    cheats: bool = False
    harmless: bool = False
    limits: Limits = field(default=QUICK)


def _attack(
    name: str, body: str, *ends: Outcome, cheats: bool = False, harmless: bool = False
) -> Attack:
    lines = "\n".join(f"    {line}" for line in body.strip("\n").splitlines())
    source = f"{TRIED}\n\ndef attack(where):\n{lines}\n"
    return Attack(name, source, frozenset(ends or (Outcome.RETURNED,)), cheats, harmless)


X86 = platform.machine() == "x86_64"


ATTACKS = [
    _attack(
        "fork bomb",
        """
import os, time
def bomb():
    for _ in range(400):
        if os.fork() == 0:
            time.sleep(30)
            os._exit(0)
    return "forked"
return tried(bomb)""",
    ),
    _attack("thread bomb", """
import threading, time
made = 0
try:
    for _ in range(1200):
        threading.Thread(target=time.sleep, args=(30,), daemon=True).start()
        made += 1
except (RuntimeError, MemoryError):
    pass
return made"""),
    _attack("memory bomb", "return len(bytearray(3 << 30))", Outcome.MEMORY, Outcome.RAISED),
    _attack("many small objects", "hoard = []\nwhile True:\n    hoard.append(bytes(1 << 16))",
            Outcome.MEMORY),
    _attack("endless loop", "while True: pass", Outcome.TIMEOUT),
    _attack("endless loop in C", "return sum(range(10 ** 12))", Outcome.TIMEOUT),
    _attack("catastrophic regular expression",
            "import re\nreturn bool(re.match('(a+)+$', 'a' * 40 + 'b'))", Outcome.TIMEOUT),
    _attack("sleeps for ever", "import time\ntime.sleep(3600)", Outcome.TIMEOUT),
    _attack("swallows every signal", """
import signal
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
while True:
    try:
        while True: pass
    except BaseException:
        pass""", Outcome.TIMEOUT),
    _attack("floods standard output", """
for _ in range(2000):
    print("x" * (1 << 16))"""),
    _attack("floods its answer", "return 'x' * (1 << 24)", Outcome.OVERFLOW),
    _attack("nests its answer", """
deep = []
for _ in range(100_000):
    deep = [deep]
return deep""", Outcome.NOT_LITERAL),
    _attack("overflows the stack", """
import sys
sys.setrecursionlimit(10 ** 9)
def down(n):
    return down(n + 1)
return down(0)""", Outcome.KILLED, Outcome.RAISED, Outcome.MEMORY, Outcome.TIMEOUT),
    _attack("reads the environment", f"""
import os
return os.environ.get({VARIABLE!r})"""),
    _attack("reads a secret file", "return tried(lambda: open(where['secret']).read())",
            harmless=True),
    _attack("reads home, users and other processes", """
import os
return tried(lambda: os.listdir(os.path.expanduser('~')) or None.x,
             lambda: open('/etc/passwd').read(),
             lambda: open('/proc/%d/environ' % where['victim']).read(),
             lambda: open('/proc/self/environ').read())"""),
    _attack("writes a file outside", """
def write(path):
    with open(path, 'x') as file:
        return file.write('escaped')
return tried(lambda: write(where['outside']), lambda: write(where['root']))""", harmless=True),
    _attack("opens its own interpreter to write", """
import os
def opened(path):
    with open(path, 'r+b'):
        return path
return tried(lambda: opened(os.__file__), lambda: opened('/usr/bin/env'))""", harmless=True),
    _attack("writes into the process that started it", """
import os
def write():
    with open('/proc/%d/mem' % os.getppid(), 'r+b', 0) as memory:
        return 'opened'
return tried(write)""", harmless=True),
    _attack("fills the disk", """
written = 0
try:
    for number in range(64):
        with open('/tmp/judgedrift-%d' % number, 'xb') as file:
            written += file.write(bytes(1 << 20))
except OSError:
    pass
return written if written > 16 << 20 else 0"""),
    _attack("opens sockets", """
import socket
return tried(lambda: socket.create_connection(('127.0.0.1', where['port']), 1),
             lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
             lambda: socket.socket(socket.AF_UNIX), lambda: socket.socketpair())""",
            harmless=True),
    _attack("starts a program", """
import os, subprocess
return tried(lambda: os.execv('/bin/sh', ['sh', '-c', 'true']),
             lambda: subprocess.run(['true']), lambda: os.posix_spawn('/bin/true', ['true'], {}),
             lambda: ['ran'][os.system('true') and 9])"""),
    _attack("signals others", """
import os
return tried(lambda: os.kill(os.getppid(), 0), lambda: os.kill(where['victim'], 9),
             lambda: os.kill(0, 0), lambda: os.kill(-1, 0), lambda: os.killpg(0, 0))"""),
    _attack("asks the kernel for more", """
import ctypes, errno, platform
libc = ctypes.CDLL(None, use_errno=True)
calls = {'ptrace': (101, 117), 'unshare': (272, 97), 'setns': (308, 268), 'bpf': (321, 280),
         'io_uring_setup': (425, 425), 'memfd_create': (319, 279), 'keyctl': (250, 219),
         'userfaultfd': (323, 282), 'perf_event_open': (298, 241), 'mount': (165, 40),
         'shmget': (29, 194), 'socket': (41, 198), 'execve': (59, 221), 'tgkill': (234, 131),
         'rt_sigqueueinfo': (129, 138), 'process_vm_writev': (311, 271), 'pidfd_open': (434, 434)}
got = []
for name, numbers in calls.items():
    number = numbers[platform.machine() != 'x86_64']
    if libc.syscall(number, 0, 0, 0, 0, 0, 0) >= 0 or ctypes.get_errno() != errno.EPERM:
        got.append(name)
return got""", harmless=True),
    _attack("calls the kernel by the numbers of another dialect", """
import ctypes
return ctypes.CDLL(None).syscall(0x40000000 + 39) >= 0""",
            Outcome.KILLED if X86 else Outcome.RETURNED),
    _attack("leaves a daemon behind", """
import os, time
def daemon():
    if os.fork() == 0:
        os.setsid()
        time.sleep(30)
        os._exit(0)
    return 'left'
return tried(daemon)"""),
    _attack("leaves by os._exit", "import os\nos._exit(0)", Outcome.EXITED, cheats=True),
    _attack("leaves by SystemExit", "raise SystemExit(0)", Outcome.EXITED, cheats=True),
    _attack("an object that equals everything", """
class Equal:
    def __eq__(self, other): return True
    def __repr__(self): return 'True'
return Equal()""", Outcome.NOT_LITERAL, cheats=True),
    _attack("a subclass of int that equals everything", """
class Equal(int):
    def __eq__(self, other): return True
    def __repr__(self): return '1'
    __hash__ = int.__hash__
return [Equal(1)]""", Outcome.SUBCLASS, cheats=True),
    _attack("a type that lies about its type", """
class Lie:
    @property
    def __class__(self): return bool
return Lie()""", Outcome.NOT_LITERAL, cheats=True),
    _attack("writes an answer of its own to every handle", """
import os
for handle in range(64):
    try:
        os.write(handle, b'{"end": "returned", "text": "True"}')
    except OSError:
        pass
os._exit(0)""", Outcome.FORGED, cheats=True),
    _attack("answers twice", """
import os
os.write(3, b'{"nonce": "guess", "end": "returned", "text": "1"}')
return None""", Outcome.FORGED, cheats=True),
    _attack("answers by itself with a nonce that it made up", """
import os
os.write(3, b'{"nonce": "0123456789abcdef", "end": "returned", "text": "True"}')
os._exit(0)""", Outcome.FORGED, cheats=True),
    _attack("finds the nonce in frames and answers in the grader's name", """
import json, os, sys
frame = sys._getframe()
while frame is not None:
    request = frame.f_locals.get('request')
    if isinstance(request, dict) and 'nonce' in request:
        answer = {'nonce': request['nonce'], 'end': 'returned', 'text': 'True'}
        os.write(3, json.dumps(answer).encode())
        os._exit(0)
    frame = frame.f_back
return None""", cheats=True),
    _attack("answers with a text that takes long to read", """
import json, os, sys
frame = sys._getframe()
while frame is not None:
    request = frame.f_locals.get('request')
    if isinstance(request, dict) and 'nonce' in request:
        members = ','.join(str(n * (2 ** 61 - 1)) for n in range(1, 2000))
        text = '[' + '9' * 40 + ',' + '(' * 40 + '-' * 999 + '{' + members + '}' + '9' * 40 + 'x'
        answer = {'nonce': request['nonce'], 'end': 'returned', 'text': text}
        os.write(3, json.dumps(answer).encode())
        os._exit(0)
    frame = frame.f_back
return None""", Outcome.FORGED, cheats=True),
    _attack("looks through frames and objects for what is expected", """
import gc, sys
mark = '-'.join(['EXPECTED', 'VALUE', ''])
seen, frame = [], sys._getframe().f_back
while frame is not None:
    seen += [repr(value) for value in frame.f_locals.values()]
    frame = frame.f_back
seen += [repr(one) for one in gc.get_objects() if isinstance(one, (dict, list, tuple))]
return [text[:60] for text in seen if mark in text]"""),
    _attack("patches what it returns through", """
import builtins, json, os
builtins.repr = lambda value: '"forged"'
json.dumps = lambda *a, **k: '{}'
os.write(1, b'x')
return None""", Outcome.FORGED, Outcome.RETURNED, Outcome.RAISED, cheats=True),
    _attack("leaves things for the next check", """
import builtins, os, random, re, signal, sys
builtins.left = sys.left = re.match = 1
sys.modules['left'] = sys
os.environ['LEFT'] = '1'
random.seed(5)
signal.signal(signal.SIGALRM, signal.SIG_IGN)
try:
    os.chdir('/usr')
except OSError:
    pass
return None"""),
    _attack("leaves a file for the next check", """
try:
    with open('/tmp/judgedrift-left', 'w') as file:
        file.write('left')
except OSError:
    pass
return None"""),
    _attack("looks for what the last checks left", """
import builtins, os, random, re, signal, sys
found = [holder.__name__ for holder in (builtins, sys) if hasattr(holder, 'left')]
found += ['re'] if re.match == 1 else []
found += ['modules'] if 'left' in sys.modules else []
found += ['environ'] if 'LEFT' in os.environ else []
found += ['random'] if random.random() == random.Random(5).random() else []
found += ['signal'] if signal.getsignal(signal.SIGALRM) == signal.SIG_IGN else []
return found + (['file'] if os.path.exists('/tmp/judgedrift-left') else [])"""),
]  # fmt: skip
"""Every attempt; the parent, its files and its other processes are looked at after each."""


@dataclass(frozen=True)
class Ended:
    """How one attack ended. ``held`` is whether it got nothing, seen from inside and outside."""

    attack: Attack
    result: Result
    traces: tuple[str, ...]

    @property
    def held(self) -> bool:
        """Whether the outcome is one of those expected, with nothing got and no trace left."""
        got = self.result.outcome is Outcome.RETURNED and self.result.value not in NOTHING
        got = passes(self.result, EXPECTED) if self.attack.cheats else got
        return self.result.outcome in self.attack.ends and not got and not self.traces


def run(tier: Tier, attacks: list[Attack] | None = None) -> Iterator[Ended]:
    """Make each attack in a sandbox of ``tier`` and look for traces on this machine.

    Raises:
        Broken: the sandbox itself failed twice in a row.
        ValueError: an attack that would succeed, and harm this machine, as nothing isolates it.
    """
    chosen = ATTACKS if attacks is None else attacks
    if tier is Tier.UNSAFE and not all(attack.harmless for attack in chosen):
        raise ValueError("without isolation only harmless attacks are made")
    worker: Worker | None = None
    with _targets() as (where, traces):
        try:
            for attack in chosen:
                call = Call(attack.source, "attack", (where,), attack.limits)
                for last in (False, True):
                    worker = worker or tiers.start(tier)
                    try:
                        result = worker.call(call)
                        break
                    except Broken:
                        worker.close()
                        worker = None
                        if last:
                            raise
                yield Ended(attack, result, tuple(traces()))
                if worker is not None and worker.dirty:
                    worker.close()
                    worker = None
        finally:
            if worker is not None:
                worker.close()


@contextlib.contextmanager
def _targets() -> Generator[tuple[dict[str, Any], Callable[[], list[str]]]]:
    """Things to attack, and a function that says which of them were touched."""
    os.environ[VARIABLE] = SECRET
    victim = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with tempfile.TemporaryDirectory() as folder, socket.socket() as listener:
        secret, outside = Path(folder, "secret"), Path(folder, "outside")
        root = Path(f"/judgedrift-{secrets.token_hex(8)}")
        secret.write_text(SECRET)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.setblocking(False)

        def traces() -> list[str]:
            harm = ["it killed a process"] if victim.poll() is not None else []
            harm += ["it wrote a file"] if outside.exists() or root.exists() else []
            harm += ["it reached a socket"] if tiers.was_hit(listener) else []
            return harm

        where = {
            "secret": str(secret),
            "outside": str(outside),
            "root": str(root),
            "port": listener.getsockname()[1],
            "victim": victim.pid,
        }
        try:
            yield where, traces
        finally:
            del os.environ[VARIABLE]
            root.unlink(missing_ok=True)
            victim.kill()
            victim.wait()
