"""Which sequence joins the batch next, and how much of a prompt one step computes. Pure.

``FairQueue`` orders the waiting sequences, ``BatchWindow`` gathers arrivals that come close
together, ``WaitingQueue`` combines both, and ``PrefillPace`` sizes the chunks of chunked prefill.
"""
