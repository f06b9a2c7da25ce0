"""How stages talk: messages, channels, ZeroMQ transport, layouts, and the loops that stages run on.

Knows neither MLX nor HTTP.
"""
