"""Metrics and traces: families, exposition, spans and their export by OTLP."""
