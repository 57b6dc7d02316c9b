"""Registers functions for the end of the process, and takes one of them back."""
import atexit
import threading


@atexit.register
def dropped():
    print("dropped")


atexit.register(print, "at the end of", __name__, flush=True)
threading._register_atexit(print, "at the end of the threads of", __name__, flush=True)
atexit.unregister(dropped)
