"""The published formats, one JSON Schema (draft 2020-12) per file and format number. No additional properties anywhere."""
