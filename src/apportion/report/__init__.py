"""The run, drawn for the people who trained it: one page that holds everything and asks the network for nothing.

`figures` makes picture files with matplotlib, which is imported only when one is drawn; the page draws its own.
"""
