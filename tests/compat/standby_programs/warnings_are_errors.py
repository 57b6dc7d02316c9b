import warnings
warnings.simplefilter("error")
import looker
print(looker.filters)

import said
said.end()
