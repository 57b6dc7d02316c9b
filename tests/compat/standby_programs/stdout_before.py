import io
import sys
real, sys.stdout = sys.stdout, io.StringIO()
import looker
print(looker.stdout is sys.stdout, file=real)
sys.stdout = real

import said
said.end()
