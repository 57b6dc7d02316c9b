import mmap
memory = mmap.mmap(-1, mmap.PAGESIZE)
