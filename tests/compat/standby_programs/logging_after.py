import logging
import sys
import torch
logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(name)s %(levelname)s %(message)s")
logging.getLogger(torch.__name__).info("said")
print(0 <= logging.makeLogRecord({}).relativeCreated < 60_000)

import said
said.end()
