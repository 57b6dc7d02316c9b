import sys
sys.excepthook = lambda *arguments: print("hooked")
import looker
print(looker.excepthook is sys.excepthook)

import said
said.end()
