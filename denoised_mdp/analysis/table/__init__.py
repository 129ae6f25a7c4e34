"""Tables of many runs: methods x tasks x distractors x seeds."""
