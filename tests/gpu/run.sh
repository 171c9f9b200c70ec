#!/bin/sh
# What an NVIDIA GPU makes of the cuda engine, without a network: sh run.sh [PIECE ..]
#
# The machine needs the GPU's driver, Python @PYTHON@ and CUDA 13's libraries, as PyTorch's wheels bring
# them. PYTHON names another interpreter, NVIDIA the folder nvidia/ of these libraries.
# Pieces, of at most ten minutes each: look trial kernels tests runs bench report. One whose time was over
# is gone on with, here or when it is named again. cuda-report.txt grows after every step: send it back.
cd "$(dirname "$0")" || exit 2
here=$(pwd)
for each in "$PYTHON" python@PYTHON@ python3 python; do
  if [ -n "$each" ] && "$each" -c 'import sys; sys.exit("%d.%d" % sys.version_info[:2] != "@PYTHON@")' 2>/dev/null; then
    python=$each
    break
  fi
done
if [ -z "$python" ]; then
  echo "error: this archive is for Python @PYTHON@, and none of that version answers: set PYTHON to one, or make the archive with another." >&2
  exit 2
fi
if [ -z "$NVIDIA" ]; then
  NVIDIA=$("$python" -c 'import importlib.util as u; s = u.find_spec("nvidia"); print(*(s.submodule_search_locations if s else [])[:1])')
fi
if [ -n "$NVIDIA" ]; then
  ln -sfn "$NVIDIA" cuda/nvidia
  ln -sfn "$NVIDIA" cpu/nvidia
else
  echo "warning: no package nvidia is beside $python, so CUDA's libraries must be found by the linker: PyTorch's wheels bring them, or NVIDIA names their folder." >&2
fi
project=$here/project/tests:$here/project:$here/project/extensions:$here/common
export EGGROLL_MLX_CPU="$project:$here/cpu"
export EGGROLL_CACHE="${EGGROLL_CACHE:-$here/cache}"
export PYTHONPATH="$project:$here/cuda" PYTHONDONTWRITEBYTECODE=1
if EGGROLL_MLX_ERROR=$("$python" -c 'import mlx.core' 2>&1); then
  unset EGGROLL_MLX_ERROR
else
  export EGGROLL_MLX_ERROR PYTHONPATH="$EGGROLL_MLX_CPU"
fi
worst=0
for piece in ${*:-look trial kernels tests runs bench report}; do
  turns=0
  while
    "$python" -m gpu.report cuda "$piece"
    code=$?
    turns=$((turns + 1))
    [ "$code" -eq 3 ] && [ "$turns" -lt 20 ]
  do :; done
  [ "$code" -gt "$worst" ] && worst=$code
done
exit "$worst"
