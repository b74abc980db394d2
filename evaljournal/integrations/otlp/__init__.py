"""OpenTelemetry: a run as spans in OTLP, protobuf or JSON."""
