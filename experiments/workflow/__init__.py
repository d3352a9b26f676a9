"""Workflow programs: what a policy writes, how it is checked, and how it runs.

`operators` declares what a program may call, `find` takes the program out of a completion, `dsl`
compiles the short form, `validate` says whether it can work, `run` executes it with a `broker`
between it and the model. docs/workflows.md has the contract.
"""
