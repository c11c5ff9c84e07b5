"""The memory that the engine may use: read from the device, measured at load, and watched."""
