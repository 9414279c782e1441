"""Pictures for people. matplotlib is imported only when one is drawn."""
