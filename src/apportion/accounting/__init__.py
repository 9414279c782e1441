"""From events to guarantees."""
