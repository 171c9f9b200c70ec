"""A report on this machine's int8 hardware: `python -m eggroll.probe`.

Matrix units of an Apple GPU as MLX decides on them (see nax_check; the GPU's family does not tell:
M3 and M4 pass for new enough) and as an int8 product shows them, the CPU's int8 instructions, and
the engines that run here.
"""

from __future__ import annotations

if __name__ == "__main__":  # before imports that take a while
    from eggroll.cli import entry

    raise SystemExit(entry.run("eggroll.probe"))

import contextlib
import json
import os
import platform
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import mlx.core as mx
import nax_check
import tyro
from nax_check.facts import sysctl

from eggroll import _extension
from eggroll.cli import command as cli
from eggroll.cli.command import Range
from eggroll.engines import available, metal, trial
from eggroll.errors import InputError
from eggroll.files import check_place, write_whole

# Flags of Linux that matter to an int8 product; a report of every flag would hide them.
LINUX_FLAGS = (
    *("avx2", "fma", "bmi2", "avx_vnni", "avx_vnni_int8", "avx512f", "avx512bw", "avx512vl"),
    *("avx512dq", "avx512_vbmi", "avx512vbmi", "avx512ifma", "avx512_vnni", "amx_int8"),
    *("asimd", "asimddp", "i8mm", "sve", "svei8mm", "sme", "smei8i32"),
)
APPLE_MODEL = "machdep.cpu.brand_string"
APPLE_FLAGS = tuple(f"hw.optional.arm.FEAT_{name}" for name in ("DotProd", "I8MM", "SME", "SME2"))
APPLE_CACHES = {
    "L1d": "hw.perflevel0.l1dcachesize",
    "L1i": "hw.perflevel0.l1icachesize",
    "L2": "hw.perflevel0.l2cachesize",
}
# GFLOP/s below which MLX's BLAS is taken for the reference one, which has 2 to 3 where OpenBLAS has
# about 30; a busy machine may look as slow.
SLOW_GFLOPS = 8.0
MEND = (
    "install OpenBLAS (Debian, Ubuntu: apt install libopenblas0) and start commands with "
    "LD_PRELOAD=libopenblas.so.0"
)
PRODUCTS = {
    "tensor": "int8 x int8 -> int32 by Metal 4's matmul2d",
    "simdgroup": "int8 by half 8 x 8 simdgroup products",
}
GATED = (
    *(("int8", 256, False), ("float16", 256, False), ("float32", 256, False)),
    *(("float16", 256, True), ("float16", 96, True)),
)
EXAMPLES = (
    ("--json machine.json", "the table, and everything in it as a file"),
    ("--json - | less", "everything as JSON on the screen"),
)

Report = dict[str, Any]


@dataclass(frozen=True)
class ProbeOptions:
    """Options of eggroll.probe."""

    json: Annotated[str, tyro.conf.arg(metavar="FILE")] = ""
    """Also write everything found as JSON; - prints it instead of the table."""
    seconds: Annotated[int, Range(1, 3600)] = 60
    """Seconds each product on a GPU may take, compilation included."""


def check(options: ProbeOptions) -> ProbeOptions:
    """Raises InputError for bad options."""
    cli.check_ranges(options)
    check_place("--json", options.json, screen=True)
    return options


def survey(seconds: float = 60) -> Report:
    """The whole report, ready for JSON; missing hardware raises nothing."""
    facts = nax_check.read_facts()
    trial.forget_verdicts()  # so that every engine is tried here and now
    return {
        "system": {
            "name": facts.system,
            "version": facts.os_version,
            "machine": platform.machine(),
            "python": platform.python_version(),
        },
        "mlx": {"version": _version("mlx"), "wheel": facts.wheel, "device": _default_device()},
        "blas": blas(),
        "gpu": {
            "chip": facts.chip,
            "architecture": facts.architecture,
            "override": facts.override,
            "memory": facts.memory,
            "working_set": facts.working_set,
        },
        "nax": nax(facts, seconds),
        "cuda": cuda(),
        "cpu": cpu(facts.system),
        "engines": engines(),
    }


def blas() -> Report:
    """GFLOP/s of MLX's float32 product on the CPU, and the BLAS that this process has loaded."""
    names = set[str]()
    with contextlib.suppress(OSError):  # only Linux has that file
        for line in Path("/proc/self/maps").read_text(errors="replace").splitlines():
            name = line.rpartition("/")[2]
            if re.match(r"lib(openblas|blas|mkl_rt|blis)\w*[-.]", name):
                names.add(name)
    rate = blas_rate()
    return {"gflops": round(rate, 1), "libraries": sorted(names), "slow": rate < SLOW_GFLOPS}


def blas_rate(size: int = 384, repeats: int = 5) -> float:
    """GFLOP/s of the best of some products of two float32 matrices [size, size]."""
    best = 0.0
    with mx.stream(mx.cpu):
        a = mx.random.normal((size, size), key=mx.random.key(0))
        mx.eval(a)
        for _ in range(repeats):
            began = time.perf_counter()
            mx.eval(a @ a)
            best = max(best, 2e-9 * size**3 / max(time.perf_counter() - began, 1e-9))
    return best


def nax(facts: nax_check.Facts, seconds: float) -> Report:
    """MLX's decision with its reasons, the products that pass its gates, and those tried."""
    decision, tf32 = nax_check.decide(facts), nax_check.tf32_enabled(facts.tf32)
    if facts.metal:
        products = {name: nax_check.try_product(name, seconds=seconds) for name in PRODUCTS}
    else:
        reason = "there is no Metal device"
        products = {name: nax_check.Outcome("not tried", reason) for name in PRODUCTS}
    return {
        "available": decision.available,
        "reasons": [reason._asdict() for reason in decision.reasons],
        "unused_by_metal": metal.nax_unused_because(),
        "architecture": nax_check.effective_architecture(facts),
        "tf32": tf32,
        "gates": [
            {
                "dtype": dtype,
                "k": k,
                "quantized": quantized,
                "refused": nax_check.gate(dtype, k, quantized=quantized, tf32=tf32),
            }
            for dtype, k, quantized in GATED
        ],
        "products": {name: asdict(outcome) for name, outcome in products.items()},
    }


def cuda() -> Report:
    """MLX's CUDA backend and its device, or the reason why there is none."""
    missing: Report = {"available": False, "device": "", "reason": "this MLX has no CUDA backend"}
    module: Any = getattr(mx, "cuda", None)
    if module is None or not module.is_available():
        return missing
    try:
        info: Any = mx.device_info(mx.Device(mx.DeviceType.gpu, 0))
        return {"available": True, "device": str(info.get("device_name", "")), "reason": ""}
    except Exception as error:  # a driver may be missing or too old
        return {**missing, "reason": " ".join(str(error).split())[:200] or type(error).__name__}


def cpu(system: str) -> Report:
    """The processor, its int8 instructions, the kernels that are built for them, its caches."""
    processor = apple_cpu() if system == "Darwin" else linux_cpu()
    cores = {"cores": os.cpu_count() or 0, "usable_cores": cli.usable_cores()}
    return {**processor, **cores, **kernels()}


def apple_cpu() -> Report:
    """Model, int8 instructions and a fast core's caches, by macOS."""
    state = sysctl(APPLE_MODEL, *APPLE_FLAGS, *APPLE_CACHES.values())
    flags = [name.rpartition("FEAT_")[2] for name in APPLE_FLAGS if state.get(name) == "1"]
    caches = {name: _size(state[key]) for name, key in APPLE_CACHES.items() if key in state}
    return {"model": state.get(APPLE_MODEL, ""), "instructions": flags, "caches": caches}


def linux_cpu(root: Path = Path("/")) -> Report:
    """Model, those of LINUX_FLAGS that it has, and the first core's caches, by Linux."""
    values = dict(_pairs(root / "proc/cpuinfo"))
    arm_names = ("CPU implementer", "CPU part")  # arm64 has no name there
    model = ", ".join(f"{name} {values[name]}" for name in arm_names if name in values)
    if "model name" in values:  # on a virtual machine it may leave the generation open
        generation = (("family", "cpu family"), ("model", "model"))
        details = ", ".join(f"{word} {values[name]}" for word, name in generation if name in values)
        model = values["model name"] + (f" ({details})" if details else "")
    flags = values.get("flags", values.get("Features", "")).split()
    return {
        "model": model,
        "instructions": [flag for flag in LINUX_FLAGS if flag in flags],
        "caches": linux_caches(root / "sys/devices/system/cpu/cpu0/cache"),
    }


def linux_caches(folder: Path) -> dict[str, int]:
    """Bytes of the first core's caches by name: L1d, L1i, L2, L3."""
    caches = {}
    for index in sorted(folder.glob("index*")):
        with contextlib.suppress(OSError):
            level, kind, size = (
                (index / name).read_text().strip() for name in ("level", "type", "size")
            )
            letter = {"Data": "d", "Instruction": "i"}.get(kind, "")
            caches[f"L{level}{letter}"] = _size(size)
    return caches


def _pairs(cpuinfo: Path) -> Iterator[tuple[str, str]]:
    with contextlib.suppress(OSError):
        for line in cpuinfo.read_text(errors="replace").splitlines():
            name, _, value = line.partition(":")
            yield name.strip(), value.strip()


def _size(text: str) -> int:
    """Bytes of a number that may end in K, M or G; 0 if it is none."""
    digits, factor = text.rstrip("KMG"), {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    return int(digits) * factor.get(text[-1], 1) if digits.isdecimal() else 0


def kernels() -> Report:
    """Instruction sets the cpu engine can use (built and detected), and the one it takes."""
    try:
        native = _extension.load()
    except InputError as error:
        return {"usable_isas": [], "isa": "", "reason": str(error)}
    usable = list(native.usable_isas())
    try:
        return {"usable_isas": usable, "isa": native.isa(), "reason": ""}
    except ValueError as error:  # EGGROLL_ISA names none of them
        return {"usable_isas": usable, "isa": "", "reason": str(error)}


def engines() -> dict[str, str]:
    """Engine -> the reason why it cannot run here ("" if it can), fastest first."""
    return available()


def _version(package: str) -> str:
    """The version of an installed package; empty if it is not there."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _default_device() -> str:
    return str(mx.default_device().type.name)


# The table.


def show(report: Report) -> None:
    """Prints the table for people."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name, text in lines(report):
        table.add_row(Text(name), Text(text))
    with (console := Console(width=120)).capture() as made:
        console.print(table)
    print(made.get(), end="")  # rich itself would end with code 1 where nobody reads


def lines(report: Report) -> Iterator[tuple[str, str]]:
    """The table's rows, in two columns; a name that goes on over several rows comes once."""
    system, mlx, gpu, processor = report["system"], report["mlx"], report["gpu"], report["cpu"]
    yield "system", f"{system['name']} {system['version']}, {system['machine']}"
    yield "Python, MLX", f"{system['python']}, {mlx['version']} on the {mlx['device']}"
    yield "wheel", mlx["wheel"] or "unknown"
    if blas := report.get("blas"):
        speed = f"{blas['gflops']:g} GFLOP/s in float32 (for products of your own: ours do without)"
        yield "MLX's BLAS", f"{', '.join(blas['libraries']) or 'of the system'}, {speed}"
        if blas["slow"]:
            yield "", f"slow, as the reference BLAS is: {MEND}"
    if gpu["chip"] or gpu["architecture"]:
        yield "GPU", f"{gpu['chip']}, {gpu['architecture']}"
        yield "", f"{_bytes(gpu['memory'])}, {_bytes(gpu['working_set'])} recommended at most"
    yield from nax_lines(report["nax"])
    cuda = report["cuda"]
    yield "CUDA", f"yes: {cuda['device']}" if cuda["available"] else f"no: {cuda['reason']}"
    cores = f"{processor['cores']} cores, {processor['usable_cores']} usable"
    yield "CPU", f"{processor['model'] or 'unknown'}, {cores}"
    yield "", "caches: " + _join_names(f"{n} {_bytes(s)}" for n, s in processor["caches"].items())
    yield "", "instructions: " + _join_names(processor["instructions"])
    yield "", "kernels: " + _join_names(processor["usable_isas"])
    yield "", f"in use: {processor['isa'] or processor['reason']}"
    for i, (name, why) in enumerate(report["engines"].items()):
        yield "" if i else "engines", f"{name}: {why or 'available'}"


def nax_lines(nax: Report) -> Iterator[tuple[str, str]]:
    """Rows on the matrix units; gates are of interest only where there is something to pass."""
    state = nax["products"]["tensor"]["state"]
    yield "NAX", f"{'yes' if nax['available'] else 'no'}, by MLX's rule; int8 product: {state}"
    for reason in nax["reasons"]:
        whose = " (of MLX's own kernels alone)" if reason["mlx_only"] else ""
        yield "", f"{'+' if reason['met'] else '-'} {reason['name']}: {reason['text']}{whose}"
    unused = nax["unused_by_metal"]
    yield "", "engine metal: " + (f"without NAX ({unused})" if unused else "with NAX")
    if nax["available"]:
        yield "MLX's kernels", f"MLX_ENABLE_TF32 is {'on' if nax['tf32'] else 'off'}"
        for gate in nax["gates"]:
            kind = "quantized" if gate["quantized"] else "dense"
            refused = f"other units: {gate['refused']}" if gate["refused"] else "NAX"
            yield "", f"{kind} {gate['dtype']}, K {gate['k']}: {refused}"
    for i, (name, outcome) in enumerate(nax["products"].items()):
        text = f"{PRODUCTS[name]}: {outcome['state']}, {outcome['text']}"
        yield "" if i else "products", text


def _join_names(names: Iterator[str] | Sequence[str]) -> str:
    return ", ".join(names) or "none known"


def _bytes(size: int) -> str:
    for factor, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= factor:
            return f"{size / factor:.4g} {unit}"
    return f"{size} bytes" if size else "unknown"


@cli.command(
    ProbeOptions,
    name="probe",
    about="Says what this machine offers: matrix units, int8 instructions, engines.",
    examples=EXAMPLES,
)
def main(options: ProbeOptions) -> None:
    """Command line of eggroll.probe."""
    findings = survey(check(options).seconds)
    text = json.dumps(findings, indent=1)
    if options.json == "-":
        print(text)
        return
    show(findings)
    if options.json:
        write_whole(Path(options.json), text.encode() + b"\n")
