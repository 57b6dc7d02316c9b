"""Keeps functions of the standard library under names of its own, and calls them later."""
from atexit import register
from os import getpid
