"""Every wire format: its bodies, parser, encoder and operations, in a package or a module each."""
