"""Capacity planning: which machines, how many and how set up, for a traffic and its targets."""
