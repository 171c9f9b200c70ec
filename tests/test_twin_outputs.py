"""The float twin of any program: its outputs, and the gradient at them."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from networks_twin import KINDS, NETWORKS, case_of, loss_of

from eggroll.baseline import twin_numpy as host
from eggroll.baseline.twin import ONE, Twin, dequantise
from eggroll.baseline.twin_numpy import NumpyTwin

TWINS = {"mlx": Twin, "numpy": NumpyTwin}


def test_every_operation_is_in_a_network():
    found = {op.kind for stage in NETWORKS["relu"].stages for op in stage.ops}
    assert {"score", "output", "sums"} < found
    for kind in KINDS:
        assert any(op.kind == kind for stage in NETWORKS[kind].stages for op in stage.ops)


@pytest.mark.parametrize("name", NETWORKS)
def test_both_twins_are_one(name: str):
    """Outputs, state and gradient, by MLX's automatic differentiation and by hand, in threads."""
    case, rng = case_of(NETWORKS[name], 50, 5), np.random.default_rng(1)
    args = dequantise(case.weights), case.batch
    outputs, after, back = Twin(case.program).run(*args)
    slopes = {k: mx.array(rng.normal(size=a.shape).astype(np.float32)) for k, a in outputs.items()}
    gradient = back(slopes)
    assert list(outputs) == [output.name for output in case.program.outputs]
    for threads in (1, 3):
        twin = NumpyTwin(case.program, threads)
        mine, mine_after, mine_back = twin.run(*args)
        assert list(mine) == list(outputs)
        for key, a in outputs.items():
            np.testing.assert_allclose(np.array(mine[key]), np.array(a), rtol=1e-5, atol=1e-4)
        np.testing.assert_allclose(np.array(mine_after), np.array(after), atol=1e-4)
        leaves = mine_back(slopes)
        assert leaves.keys() == gradient.keys() == case.weights.keys()
        for key, g in gradient.items():
            error = np.abs(np.array(leaves[key]) - np.array(g)).max()
            assert error <= 1e-4 * np.abs(np.array(g)).max() + 1e-6, key
        again = twin.gradient_at(*args, slopes)
        assert all(np.array_equal(again[key], leaves[key]) for key in again)


@pytest.mark.parametrize("name", NETWORKS)
def test_gradient_is_the_slope_of_the_loss(name: str):
    """Central differences of every single weight, in float64."""
    program = NETWORKS[name]
    case, rng = case_of(program, 6, 3, seed=4), np.random.default_rng(1)
    # Off the grid of int8, where nothing stands on a corner of a clip, a ReLU or a table.
    weights = {k: w / ONE + rng.uniform(-0.03, 0.03, w.shape) for k, w in case.weights.items()}
    sizes = {output.name: output.size for output in program.outputs}
    sizes |= {"logits": program.vocabulary} if program.scored else {}
    slopes = {k: rng.normal(size=(*case.tokens.T.shape, size)) for k, size in sizes.items()}
    outside = {k: a for k, a in slopes.items() if k != "logits"}
    gradient = loss_of(case, weights, slopes)[1].backward(slopes.get("logits"), outside)
    assert all(np.abs(g).max() > 0 for g in gradient), "a leaf that nothing depends on"
    for (key, w), g in zip(weights.items(), gradient, strict=True):
        found = np.zeros(w.shape)
        for i in np.ndindex(w.shape):
            moved = [w.copy(), w.copy()]
            moved[0][i] += 1e-6
            moved[1][i] -= 1e-6
            up, down = (loss_of(case, weights | {key: m}, slopes)[0] for m in moved)
            found[i] = (up - down) / 2e-6
        np.testing.assert_allclose(g, found, rtol=1e-5, atol=1e-6, err_msg=key)


@pytest.mark.parametrize("twin", TWINS)
def test_a_loss_in_mlx_is_differentiated_through_the_outputs(twin: str):
    case = case_of(NETWORKS["mlp"], 20, 1)
    args = dequantise(case.weights), case.batch._replace(tokens=None)
    outputs, _, back = TWINS[twin](case.program).run(*args)
    value, after, gradient = TWINS[twin](case.program).gradient_of(
        lambda found: mx.square(found["output"]).sum(), *args
    )
    assert float(value) == pytest.approx(float(mx.square(outputs["output"]).sum()))
    assert after.shape == (20, 0)
    for key, g in back({"output": 2 * outputs["output"]}).items():
        assert np.array_equal(gradient[key], g)


@pytest.mark.parametrize("twin", TWINS)
def test_output_left_out_has_no_slope(twin: str):
    case = case_of(NETWORKS["relu"], 5, 2)
    args = dequantise(case.weights), case.batch
    outputs, _, back = TWINS[twin](case.program).run(*args)
    some = mx.ones_like(outputs["aside"])
    zero = {name: mx.zeros_like(a) for name, a in outputs.items()}
    whole, part = back(zero | {"aside": some}), back({"aside": some})
    assert all(np.array_equal(whole[key], part[key]) for key in whole)
    assert not np.array(part["b.sums"]).any()
    assert np.array(part["b.aside"]).any()
    with pytest.raises(ValueError, match="'besides' is no output: the program has state, aside"):
        back({"besides": some})


@pytest.mark.parametrize("twin", TWINS)
def test_what_a_program_lacks_or_reads_is_said(twin: str):
    case = case_of(NETWORKS["nnue"], 2, 3)
    weights, made, batch = dequantise(case.weights), TWINS[twin](case.program), case.batch
    for call in (made.logits, made.bits):
        with pytest.raises(ValueError, match="has no score"):
            call(weights, batch._replace(targets=batch.tokens))
    with pytest.raises(ValueError, match=r"reads features int32 \[T, S, 10\]"):
        made.run(weights, batch._replace(features=None))
    wrong = mx.where(batch.features < 0, -1, 20)
    with pytest.raises(ValueError, match="features reach from -1 to 20: -1 to 19"):
        made.run(weights, batch._replace(tokens=None, features=wrong))
    case = case_of(NETWORKS["relu"], 2, 3)
    with pytest.raises(ValueError, match="reads tokens"):
        TWINS[twin](case.program).run(dequantise(case.weights), case.batch._replace(tokens=None))


def test_blas_has_its_threads_back():
    functions = host._openblas()
    if functions is None:
        pytest.skip("NumPy has another BLAS")
    before = functions[0]()
    with host.one_thread():
        assert functions[0]() == 1
    assert functions[0]() == before
