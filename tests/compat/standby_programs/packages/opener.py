import os
reading, writing = os.pipe()
