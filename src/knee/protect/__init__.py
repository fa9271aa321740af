"""The gateway: proxy, health, drain, around the decisions of `policy`."""
