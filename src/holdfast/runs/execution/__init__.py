"""How a worker performs runs: claim, attempt, settle.

Its Lua scripts are in ``runs/lua``, beside the fragments that they share with submit and upkeep.
"""
