"""The demo: a whole system at work, with crashes, and a proof that nothing was lost (``holdfast demo``)."""
