"""Whether a graph pays, decided by measurement: variants (`judge`), the calls that time them (`measuring`), what was
decided (`store`), and a look back now and then (`drift`). `selector` is what a recorded function talks to.
"""
