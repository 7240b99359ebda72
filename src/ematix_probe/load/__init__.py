"""Load probes: what is sent, how fast, how it is measured and judged.

asyncio or threads send, `histogram` counts, `judging` compares. A reader begins with `declaration`.
"""
