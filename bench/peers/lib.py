"""What the Python peers share: arguments, installing into a cache folder,
counting runs, and the one line of JSON."""

import argparse
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))

# Only the result may go to stdout: keep it aside, and send the rest to stderr.
_out = os.dup(1)
os.dup2(2, 1)


def note(text):
    print(text, file=sys.stderr, flush=True)


def emit(result):
    os.write(_out, (json.dumps(result) + "\n").encode())


def cache_folder():
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.environ.get("TENURE_BENCH_CACHE") or os.path.join(base, "tenure-bench")


def pins(packages):
    """The lines of requirements.txt for these packages."""
    found = {}
    with open(os.path.join(HERE, "requirements.txt"), encoding="utf-8") as file:
        for line in file:
            line = line.strip()
            if line and not line.startswith("#"):
                found[line.split("==")[0].split("[")[0]] = line
    return [found[name] for name in packages]


def install(peer, packages):
    """Makes a virtual environment with the packages, once, and names its Python."""
    wanted = pins(packages)
    key = "\n".join([sys.version] + wanted)
    folder = os.path.join(cache_folder(), "%s-%s" % (peer, hashlib.sha256(key.encode()).hexdigest()[:12]))
    python = os.path.join(folder, "bin", "python")
    done = os.path.join(folder, "installed")
    if os.path.exists(done):
        return python
    note("installing " + ", ".join(wanted))
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(cache_folder(), exist_ok=True)
    for command in (
        [sys.executable, "-m", "venv", folder],
        [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"] + wanted,
    ):
        run = subprocess.run(command, stdout=2, stderr=subprocess.PIPE, text=True)
        sys.stderr.write(run.stderr)
        if run.returncode != 0:
            lines = [line for line in run.stderr.splitlines() if line.startswith("ERROR")]
            raise RuntimeError("pip could not install %s%s" % (peer, ": " + lines[-1] if lines else ""))
    open(done, "w").close()
    return python


def setup(peer, modes, store, packages, concurrency):
    """Reads the arguments, installs the packages, and goes on under their Python."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--" + store, metavar="URL")
    parser.add_argument("--mode", choices=modes, default=modes[0])
    parser.add_argument("--jobs", type=int, default=20000)
    parser.add_argument("--concurrency", type=int, default=concurrency)
    parser.add_argument("--rate", type=int, default=100)
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--install-only", action="store_true")
    options = parser.parse_args()
    if not options.install_only and not getattr(options, store):
        parser.error("--%s URL is needed" % store)
    if options.jobs < 1:
        parser.error("--jobs wants at least 1")
    if os.environ.get("TENURE_BENCH_READY") != peer:
        try:
            python = install(peer, packages)
        except Exception as error:
            emit({"peer": peer, "mode": options.mode, "error": str(error)})
            sys.exit(1)
        if options.install_only:
            sys.exit(0)
        os.environ["TENURE_BENCH_READY"] = peer
        os.dup2(_out, 1)
        os.execv(python, [python] + sys.argv)
    # So that a stop from outside also ends the children.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    return options


def finish(peer, mode, main):
    """Runs main and prints its result, or why there is none."""
    try:
        result = main()
    except BaseException as error:
        import traceback

        traceback.print_exc()
        emit({"peer": peer, "mode": mode, "error": (str(error) or type(error).__name__).splitlines()[0]})
        sys.exit(1)
    emit(dict({"peer": peer, "mode": mode}, **result))


def check_runs(ids, jobs):
    """Raises unless each of 0..jobs is there exactly once."""
    seen = [0] * jobs
    for job in ids:
        seen[job] += 1
    never = seen.count(0)
    often = sum(1 for n in seen if n > 1)
    if never or often:
        raise RuntimeError("%d jobs never ran and %d ran more than once" % (never, often))


def warm_jobs(rate):
    """How many light-rate jobs are left out at the start."""
    return min(20, rate)


def waits(sent, begun):
    """Percentiles of begun minus sent, in milliseconds."""
    spans = sorted((b - s) * 1000 for s, b in zip(sent, begun))
    if not spans:
        return None

    def at(q):
        return round(spans[min(len(spans) - 1, int(q * len(spans)))], 2)

    return {"p50": at(0.5), "p90": at(0.9), "p99": at(0.99), "max": at(1)}


def temporary_folder():
    return tempfile.mkdtemp(prefix="tenure-bench-peer-")
