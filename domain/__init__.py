"""The pure core: values, events, decisions and ports. Standard library only, no I/O."""
