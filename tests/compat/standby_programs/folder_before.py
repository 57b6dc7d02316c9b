import os
os.makedirs("deeper", exist_ok=True)
os.chdir("deeper")
import looker
print(os.path.basename(looker.cwd), os.path.basename(os.getcwd()))
os.chdir("..")

import said
said.end()
