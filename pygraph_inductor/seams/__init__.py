"""The only code that touches Inductor: one table of seams, and one file for each function that ours replaces."""
