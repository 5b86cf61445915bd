"""What an agent is, and how one is invoked.

Nothing here knows where a run came from: the three ways hand over a payload and get an Outcome back.
"""
