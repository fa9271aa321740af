"""The HTTP client that offers the load: schedule, requests, streams, books, workers."""
