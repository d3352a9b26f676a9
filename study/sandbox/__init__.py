"""Runs untrusted Python: rule functions, code answers, later whole workflows.

`pool.Pool` makes calls, `grader.Pair` runs trusted tests against an untrusted program,
`tiers.find` says how both are isolated, `calls.same` compares what came back. `inside` is all of
the project that untrusted code can see. docs/sandbox.md has the attacks.
"""
