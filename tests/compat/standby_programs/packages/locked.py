import multiprocessing
lock = multiprocessing.get_context("fork").Lock()
