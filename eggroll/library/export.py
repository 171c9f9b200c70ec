"""Export: a trained network as a file that needs nothing of this library, equal to it in every bit.

FORMATS has the kinds of files by their ending; docs/export.md describes them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from eggroll.cli import command as cli
from eggroll.errors import InputError, in_python
from eggroll.files import CHECKPOINT, check_of_no_run, path_of, write_whole
from eggroll.library import export_c, export_numpy, export_onnx
from eggroll.library import folder as trainer_folder
from eggroll.library.export_parts import Network, identifier
from eggroll.spec.program import Program
from eggroll.training import checkpoint


def safetensors_file(net: Network) -> bytes:
    """Leaves by name, int8, and the declaration in the metadata."""
    from safetensors.numpy import save

    if "__metadata__" in net.weights:
        raise InputError(
            "a leaf is named '__metadata__', as what safetensors keeps beside leaves is: give it "
            "another name, or write another format."
        )
    facts = {
        "format": "eggroll.network",
        "version": "1",
        "declaration": json.dumps(net.program.declaration()),
        "score_bits": str(net.program.score_bits),
        "network": net.program.digest(),
    }
    leaves = {k: np.ascontiguousarray(w) for k, w in net.weights.items()}
    return bytes(save(leaves, metadata=facts))


# Ending of the file -> its bytes.
FORMATS: dict[str, Callable[[Network], bytes]] = {
    ".py": export_numpy.source,
    ".h": export_c.header,
    ".onnx": export_onnx.model,
    ".safetensors": safetensors_file,
}


def export(program: Program, weights: Mapping[str, Any], path: Any) -> Path:
    """Writes a network as a file of the kind that its ending names; returns its path.

    Raises:
        InputError: an unknown ending, a missing package, or the file cannot be written; what was
            there before is intact.
    """
    to = path_of(path)
    if to.suffix not in FORMATS:
        raise InputError(
            f"{str(path)!r} ends in {to.suffix!r}: endings are {', '.join(FORMATS)}, which name "
            "the format."
        )
    check_of_no_run(to)
    if to.suffix == ".py" and to.stem in {*sys.stdlib_module_names, "numpy"}:
        whose = "NumPy's" if to.stem == "numpy" else "Python's own"
        raise InputError(f"{str(path)!r} would be imported in {whose} place: give another name.")
    if program.scored and any(output.name == "logits" for output in program.outputs):
        raise InputError("an output is named 'logits', as the score's are: give it another name.")
    leaves = {leaf.name: np.asarray(weights[leaf.name]) for leaf in program.leaves}
    net = Network(program, leaves, identifier(to.stem))
    for _, op in net.operations():
        if op.kind not in export_numpy.EXPRESSIONS and to.suffix != ".safetensors":
            raise InputError(
                f"the operation {op.kind!r} has no form in {to.suffix}: export to .safetensors, "
                "which keeps declaration and weights."
            )
    made = FORMATS[to.suffix](net)
    with in_python():
        write_whole(to, made)
    return to


# The command.

EXAMPLES = (
    ("runs/stdlib-000 --to net.h", "a header of C99 without dependencies"),
    ("policy.safetensors --to net.onnx", "of a checkpoint of Trainer.save"),
)


@dataclass(frozen=True)
class ExportOptions:
    """Options of eggroll export."""

    run: Annotated[str, tyro.conf.arg(metavar="RUN"), tyro.conf.Positional] = ""
    """Folder of a run of eggroll.train or of a Trainer, or a checkpoint file of either."""
    to: Annotated[str, tyro.conf.arg(metavar="FILE")] = ""
    """File to write, .py, .h, .onnx or .safetensors, which names the format."""


def stored_network(path: Path) -> tuple[Program, Mapping[str, Any]]:
    """Program and weights of a run's folder or of a checkpoint file.

    Raises:
        InputError: there is none, or it is damaged.
    """
    if not path.exists():
        raise InputError(
            f"{str(path)!r} is no file or folder: give the folder of a run, or a checkpoint."
        )
    file = path / CHECKPOINT if path.is_dir() else path
    if checkpoint.kind_of(file) == checkpoint.LIBRARY:
        saved = trainer_folder.read(file, None, {})
        return saved.program, {
            leaf.name: saved.arrays[f"weights/{leaf.name}"] for leaf in saved.program.leaves
        }
    stored = checkpoint.load_model(file)
    return stored.config.program(), stored.weights


@cli.command(
    ExportOptions,
    name="export",
    about="Writes a trained network as Python, C, ONNX or safetensors, equal in every bit.",
    examples=EXAMPLES,
)
def main(options: ExportOptions) -> None:
    """Command line of eggroll export."""
    if not options.run or not options.to:
        raise InputError("export needs a run and --to FILE, as in runs/mine --to net.h.")
    path = export(*stored_network(Path(options.run)), options.to)
    print(f"wrote {path} ({path.stat().st_size:,} bytes)")
