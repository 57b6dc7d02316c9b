import logging
logging.getLogger("setter").setLevel(logging.DEBUG)
import setter
print(logging.getLogger("setter").level, len(logging.getLogger("setter").handlers), setter.__name__)

import said
said.end()
