"""Operations on a whole log: archive, backup, erase, verify, checkpoints, as-of."""
