import sys
files = set()
sys.settrace(lambda frame, event, argument: files.add(frame.f_code.co_filename))
import torch
sys.settrace(None)
import os
print([each for each in files if not each.startswith("<") and not os.path.exists(each)], torch.__name__)

import said
said.end()
