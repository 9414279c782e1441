"""The paper's tables and figures, re-run: one experiment per name, results beside the scripts, one page made of them.

python -m experiments list
python -m experiments run NAME [--trials N] [--quick]
python -m experiments page
"""
