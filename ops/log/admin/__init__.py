"""Operations on a whole log: archive, backup, verify, checkpoints, as-of."""
