"""Roles: plain classes that act, learn and evaluate, and what they keep; nothing here knows Ray."""
