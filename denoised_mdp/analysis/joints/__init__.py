"""Joint-position regression: how many labels does an encoder need?"""
