"""Programs of training and decoding, compiled for TPUs and GPUs that this machine lacks: their memory and time.

`devices` describes devices that are not here. `program_list` has the programs of a configuration, `costs` compiles them
and reads XLA's analyses, and `cost_report` makes tables. Nothing runs: memory is XLA's plan, and times are estimates.
"""
