"""`vivavoce bench speech`: our pipeline and mlx-audio's own loop on one checkpoint, in alternation.

compare     runs two worker processes by turns, sums up             (no MLX in this process)
checkpoint  the folder that both load: a copy whose end of speech is out of reach, or random weights
worker      one side in its own process: answers run, count, pieces (records.py has the messages)
ours        the layout `speech` through Running, and its three compiled steps one by one
theirs      mlx-audio's generate_custom_voice, and the same pieces of it one by one
table       the result for people
"""
