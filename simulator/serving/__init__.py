"""Requests under load: closed forms of continuous batching."""
