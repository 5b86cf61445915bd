"""Agents in processes of their own: a zygote forks them, a supervisor keeps them alive.

Nothing is imported here: the zygote is part of this package and must stay small.
"""
