"""Runs untrusted Python: rule functions, code answers, whole workflows.

`pool.Pool` makes calls, `conversation.Stage` runs programs that ask while they run, `grader.Pair` runs trusted tests against an untrusted program,
`tiers.find` says how both are isolated, `calls.same` compares what came back. `inside` is all of
the project that untrusted code can see. docs/sandbox.md has the attacks.
"""
