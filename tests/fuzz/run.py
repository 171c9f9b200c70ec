"""Fuzzes the native entry points with libFuzzer, under the address and undefined sanitizers.

`python tests/fuzz/run.py --inputs 1000000` builds tests/fuzz/entries.cpp with clang, runs its
targets one after another and prints what was counted; it ends with 1 if anything was found, whose
input then lies in build/fuzz/found. Needs clang with its runtimes and this machine's MLX.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "extensions" / "int8_gemm" / "cpu"
# Share of the inputs by target. `values` are arrays alone, a hundred times as fast as the others.
TARGETS = {"programs": 0.2, "arguments": 0.15, "worlds": 0.1, "values": 0.55}
CHECKED = "program", "crediting", "stepper", "rules", "engine"  # guided by what they reach
PLAIN = "blocks", "dispatch", "machine", "parts"
X86 = {
    "avx2": ["-mavx2", "-mfma", "-mbmi2"],
    "avxvnni": ["-mavx2", "-mfma", "-mbmi2", "-mavxvnni"],
    "avx512vnni": [
        *("-mavx2", "-mfma", "-mbmi2", "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq"),
        *("-mavx512vbmi", "-mavx512ifma", "-mavx512vnni"),
    ],
}
X86["amx"] = [*X86["avx512vnni"], "-mamx-tile", "-mamx-int8"]
SANITIZE = "-fsanitize=address,undefined"
FLAGS = ["-std=c++20", "-O1", "-g1", SANITIZE, "-fno-sanitize-recover=all"]
LIMITS = ["-timeout=60", "-rss_limit_mb=4000", "-max_len=512", "-len_control=0"]


def compiler() -> str:
    return os.environ.get("FUZZ_CXX", "clang++")


def lacks(folder: Path) -> str:
    """Why nothing can be fuzzed here, or nothing."""
    if not shutil.which(compiler()):
        return f"{compiler()} is not installed"
    source = 'extern "C" int LLVMFuzzerTestOneInput(const char*, unsigned long) { return 0; }'
    folder.mkdir(parents=True, exist_ok=True)
    command = [compiler(), "-fsanitize=fuzzer,address", "-x", "c++", "-", "-o", folder / "empty"]
    done = subprocess.run(command, input=source.encode(), capture_output=True, check=False)
    return "" if done.returncode == 0 else f"{compiler()} has no libFuzzer"


def units() -> dict[str, list[str]]:
    """Instruction sets that this processor runs, with the compiler's flags."""
    from eggroll import _extension

    usable = _extension.load().usable_isas()
    return {name: flags for name, flags in X86.items() if name in usable} | {"generic": []}


def build(folder: Path, mlx: Path) -> Path:
    """Compiles the harness and the code that it calls; the program's path."""
    isas = units()
    common = [compiler(), *FLAGS, f"-I{SOURCES}", f"-I{ROOT / 'eggroll' / 'native'}"]
    common += ["-isystem", str(mlx / "include"), *(f"-DEGG_HAVE_{i.upper()}" for i in isas)]
    files = {SOURCES / f"{name}.cpp": ["-fsanitize=fuzzer-no-link"] for name in CHECKED}
    files |= {SOURCES / f"{name}.cpp": [] for name in PLAIN}
    files |= {SOURCES / f"isa_{name}.cpp": flags for name, flags in isas.items()}
    files |= {Path(__file__).with_name("entries.cpp"): []}
    objects = []
    for source, flags in files.items():
        objects.append(str(folder / f"{source.stem}.o"))
        subprocess.run([*common, *flags, "-c", str(source), "-o", objects[-1]], check=True)
    library = mlx / "lib"
    linked = [*objects, f"-L{library}", "-lmlx", f"-Wl,-rpath,{library}", "-o", folder / "entries"]
    subprocess.run([compiler(), f"{SANITIZE},fuzzer", *linked], check=True)
    return folder / "entries"


def fuzz(program: Path, target: str, inputs: int, seed: int, seconds: int) -> dict[str, Any]:
    """Runs one target; what was counted, and what libFuzzer said if it found something."""
    corpus, found = program.with_name(f"corpus-{target}"), program.with_name("found")
    for folder in (corpus, found):
        folder.mkdir(exist_ok=True)
    counts = program.with_name(f"{target}.counts")
    counts.unlink(missing_ok=True)
    sanitizers = {
        "ASAN_OPTIONS": "detect_leaks=0:malloc_context_size=2",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    env = {**os.environ, **sanitizers, "FUZZ_TARGET": target, "FUZZ_COUNTS": str(counts)}
    chosen = [f"-runs={inputs}", f"-seed={seed}", f"-max_total_time={seconds}"]
    chosen += [f"-artifact_prefix={found}/{target}-"]
    command = [program, *LIMITS, "-entropic=0", "-detect_leaks=0", *chosen, corpus]
    start = time.monotonic()
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    accepted, refused = map(int, counts.read_text().split()) if counts.exists() else (0, 0)
    result = {
        "target": target,
        "inputs": accepted + refused,
        "accepted": accepted,
        "refused": refused,
        "seconds": round(time.monotonic() - start),
        "found": done.returncode != 0,
    }
    return result | ({"said": done.stderr[-4000:]} if done.returncode else {})


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--inputs", type=int, default=1_000_000, help="over all targets")
    parser.add_argument("--seconds", type=int, default=0, help="of a target, at most; 0: no limit")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "fuzz")
    parser.add_argument("--out", type=Path, help="also write the counts as JSON")
    args = parser.parse_args(argv)
    if missing := lacks(args.folder):
        print(f"error: {missing}: install clang and run this again.", file=sys.stderr)
        return 2
    import mlx.core as mx

    program = build(args.folder, Path(mx.__file__).parent)
    shares = {target: TARGETS[target] for target in args.targets}
    results = []
    for target, share in shares.items():
        inputs = round(args.inputs * share / sum(shares.values()))
        results.append(fuzz(program, target, inputs, args.seed, args.seconds))
        print(json.dumps(results[-1]), flush=True)
    counted = {
        "inputs": sum(result["inputs"] for result in results),
        "found": sum(result["found"] for result in results),
        "machine": f"{platform.machine()}, {platform.system()} {platform.release()}",
        "instruction_sets": list(units()),
        "targets": results,
    }
    if args.out:
        args.out.write_text(json.dumps(counted, indent=1) + "\n")
    print(f"{counted['inputs']:,} inputs, {counted['found']} targets with findings")
    return 1 if counted["found"] else 0


if __name__ == "__main__":
    sys.exit(main())
