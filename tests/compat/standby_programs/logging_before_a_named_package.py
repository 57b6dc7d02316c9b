import logging
logging.basicConfig(level=logging.INFO)
import looker
print(looker.root)

import said
said.end()
