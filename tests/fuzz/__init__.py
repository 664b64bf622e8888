"""Fuzzing by the clock: `python -m tests.fuzz --minutes N`, on a CPU.

`worker` (in each process: draws cases, checks them) -> `sorting` (what a failure is a failure of, made small) ->
`pool` (the processes, seen from outside) -> `found` (all causes, saved) -> `screen` (what is printed).
"""
