"""Several agents on scaled models, in less memory than their contexts take."""
