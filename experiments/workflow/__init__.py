"""Workflow programs: what a policy writes, how it is checked and run, and what it is paid.

`operators` declares what a program may call, `find` takes the program out of a completion, `dsl`
compiles the short form, `validate` says whether it can work, `run` executes it with a `broker`
between it and the model. `prompt` makes what the policy is shown, `experience` keeps programs that
solved problems. docs/workflows.md has the contract.
"""
