"""Exported networks: size, and the time of one row beside float32 in ONNX Runtime, one thread.

    python benchmarks/export.py --hidden 256 --repeats 9

Outputs are compared with the engine before anything is timed. It needs cc, onnx and onnxruntime.
"""

import importlib.util
import itertools
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from checks import check_packages

import eggroll as eg
from eggroll.errors import whole_number

MAIN = """#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include "net.h"
int main(int argc, char **argv) {
  const int rows = atoi(argv[1]), rounds = argc > 2 ? atoi(argv[2]) : 1;
  int8_t *in = malloc((size_t)rows * NET_INPUTS), *out = malloc((size_t)rows * NET_OUTPUT_SIZE);
  if (fread(in, NET_INPUTS, rows, stdin) != (size_t)rows) return 1;
  const clock_t began = clock();
  for (int i = 0; i < rounds; ++i)
    for (int r = 0; r < rows; ++r) net_step(in + r * NET_INPUTS, out + r * NET_OUTPUT_SIZE);
  const double seconds = (double)(clock() - began) / CLOCKS_PER_SEC;
  fwrite(out, NET_OUTPUT_SIZE, rows, stdout);
  fprintf(stderr, "%.6f", 1e6 * seconds / rounds / rows);
  return 0;
}
"""


def session(path: Path) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def float_model(sizes: list[int], path: Path) -> None:
    """The same shape in float32: products, biases, ReLUs."""
    import onnx

    random, nodes, constants, x = np.random.default_rng(0), [], [], "inputs"
    for i, (K, O) in enumerate(itertools.pairwise(sizes)):
        for name, shape in ((f"W{i}", (K, O)), (f"b{i}", (O,))):
            values = random.normal(size=shape).astype(np.float32)
            constants.append(onnx.numpy_helper.from_array(values, name))
        last = i + 2 == len(sizes)
        nodes.append(onnx.helper.make_node("Gemm", [x, f"W{i}", f"b{i}"], [f"y{i}"]))
        if not last:
            nodes.append(onnx.helper.make_node("Relu", [f"y{i}"], [f"r{i}"]))
        x = f"y{i}" if last else f"r{i}"
    kind, value = onnx.TensorProto.FLOAT, onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        nodes, "float", [value("inputs", kind, ["R", sizes[0]])],
        [value(x, kind, ["R", sizes[-1]])], constants,
    )  # fmt: skip
    made = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 13)])
    made.ir_version = 8
    onnx.save(made, path)


def microseconds(call: Callable[[], object], rounds: int) -> float:
    began = time.perf_counter()
    for _ in range(rounds):
        call()
    return 1e6 * (time.perf_counter() - began) / rounds


def compiled(folder: Path, flags: str) -> Path:
    (folder / "main.c").write_text(MAIN)
    to = folder / f"main{flags.replace(' ', '').replace('=', '')}"
    words = ["cc", "-std=c99", *flags.split(), "main.c", "-o", str(to)]
    subprocess.run(words, cwd=folder, check=True)
    return to


def main(inputs: int = 64, hidden: int = 256, outputs: int = 10, repeats: int = 9) -> None:
    whole_number("--repeats", repeats, 1)
    check_packages("dev", "onnx", "onnxruntime")
    folder = Path(tempfile.mkdtemp())
    es = eg.Trainer(eg.networks.mlp(inputs, [hidden], outputs), estimator="feedback", rule="adam")
    rows = np.random.default_rng(0).integers(-127, 128, (10_000, inputs)).astype(np.int8)
    right = es.model(rows)
    files = {end: es.model.export(folder / f"net.{end}") for end in ("py", "h", "onnx")}
    float_model([inputs, hidden, outputs], folder / "float.onnx")
    integer, real = session(files["onnx"]), session(folder / "float.onnx")
    spec = importlib.util.spec_from_file_location("net", files["py"])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert np.array_equal(module.step(rows)["output"], right)
    assert np.array_equal(integer.run(None, {"inputs": rows})[0], right)
    one, one_real = rows[:1], rows[:1].astype(np.float32)
    calls: dict[str, Callable[[], float]] = {
        "NumPy, batch 1": lambda: microseconds(lambda: module.step(one), 200),
        "ONNX int8, batch 1": lambda: microseconds(lambda: integer.run(None, {"inputs": one}), 500),
        "ONNX float32, batch 1": lambda: microseconds(
            lambda: real.run(None, {"inputs": one_real}), 500
        ),
    }
    for flags in ("-O3 -march=native", "-O3 -mavx2", "-O2"):
        binary = compiled(folder, flags)

        def run(binary: Path = binary) -> float:
            done = subprocess.run(
                [binary, str(len(rows)), "5"], input=rows.tobytes(), capture_output=True, check=True
            )
            assert np.array_equal(np.frombuffer(done.stdout, np.int8).reshape(right.shape), right)
            return float(done.stderr)

        calls[f"C {flags}, batch 1"] = run
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):  # in turn, so that a slow moment meets all of them
        for name, call in calls.items():
            found[name].append(call())
    for end, path in files.items():
        print(f"net.{end}: {path.stat().st_size:,} bytes")
    print(f"float.onnx: {(folder / 'float.onnx').stat().st_size:,} bytes")
    for name, times in found.items():
        low, high = min(times), max(times)
        print(f"{name}: {statistics.median(times):.2f} us a row ({low:.2f} to {high:.2f})")


if __name__ == "__main__":
    eg.script(main)
