"""Runs untrusted Python: rule functions, code answers, whole workflows.

`pool.Pool` makes calls, `grader.Pair` runs trusted tests against an untrusted program,
`conversation.Stage` runs programs that ask while they run, `tiers.find` says how all are isolated,
`calls.same` compares what came back. `inside` is all of the project that untrusted code can see.
docs/sandbox.md has the attacks.
"""
