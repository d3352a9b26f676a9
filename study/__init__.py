"""What a study is: rows, judges, verdicts, rewards, records. No torch, no network."""
