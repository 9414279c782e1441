"""The private steps of a pipeline besides training, each of which is an event in the ledger."""
