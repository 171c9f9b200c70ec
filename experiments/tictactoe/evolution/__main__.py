"""`python -m experiments.tictactoe.evolution`: see training.py."""

from experiments.tictactoe.evolution.training import main

main()
