"""What a run must survive: real commands, broken on purpose, and files made to mislead.

`make test` tries each kind a few times, `make torture` many (python -m faults.torture --help).
"""
