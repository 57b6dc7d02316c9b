import logging
import sys
logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(name)s %(levelname)s %(message)s")
import torch
logging.info("said by %s", torch.__name__)

import said
said.end()
