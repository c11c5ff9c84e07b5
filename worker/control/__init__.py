"""What changes or ends a running worker: swaps, knobs of operators, and its drain."""
